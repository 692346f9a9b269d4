"""Three update rules, chosen by a parameter's name: Muon, Sinkhorn momentum, AdamW (report §2.5, §4.2)."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
UPDATE_RMS = 0.18
WEIGHT_DECAY = 0.1
NEWTON_SCHULZ = ((3.4445, -4.7750, 2.0315),) * 8 + ((2.0, -1.5, 0.5),) * 2  # fast steps, then exact ones
CACHED = 1 << 16  # elements iterated on at once: matrices of the toy stay in a core's cache
SINKHORN_STEPS = 11  # rows and columns in turn, a row step first and last
SINKHORN_THRESHOLD = 1e-3
EPS = 1e-20
TABLE_SPEED = 5.0

# The first pattern found in the name decides. What no rule names is a matrix.
RULES = (
    (r"gate\.bias(_vl)?$", "balance"),  # moved by the balance rule alone, see losses.py
    (r"engram\.embed\.weight$", "table"),  # Sinkhorn momentum at TABLE_SPEED times the rate
    (r"(^|\.)(embed|head)\.weight$", "embedding"),  # Sinkhorn momentum
    (r"norm\.weight$|\.[qk]_weight$", "gain"),  # AdamW with decay
    (r"_(sink|base|scale)$", "scalar"),  # AdamW without decay
    (r"", "matrix"),  # Muon
)


def rule(name: str) -> str:
    """The update rule of a parameter, by its name."""
    return next(kind for pattern, kind in RULES if re.search(pattern, name))


def newton_schulz(m: Tensor) -> Tensor:
    """Orthogonalise each matrix of `m` [N, a, b]: all singular values go to about 1."""
    if m.shape[-2] > m.shape[-1]:
        return newton_schulz(m.mT).mT
    x = m / (m.norm(dim=(-2, -1), keepdim=True) + EPS)
    few = max(1, CACHED // m[0].numel()) if m.device.type == "cpu" else len(m)
    return torch.cat([orthogonal(part) for part in x.split(few)])


def orthogonal(x: Tensor) -> Tensor:
    for a, b, c in NEWTON_SCHULZ:
        gram = x @ x.mT  # [N, a, a]
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def sinkhorn_balance(u: Tensor, *, total: Callable[[Tensor], Tensor] = torch.clone) -> Tensor:
    """Balance `u` [rows, n]: normalise rows and columns in turn, rows last, so that each live row has norm 1.

    Rows with a norm of at most 1e-3 of the mean norm become zero. The matrix is read, never rewritten: each pass
    only computes one vector of scales. Where `u` holds some of the rows, `total` sums a vector over all holders.
    """
    norm = u.norm(dim=1)
    whole, count = total(torch.stack([norm.sum(), norm.new_tensor(len(norm))]))
    row = inverse(norm) * (norm > SINKHORN_THRESHOLD * whole / count)
    u = u * row[:, None]
    square = u.square()
    row = torch.ones_like(row)
    for _ in range(SINKHORN_STEPS // 2):
        column = inverse(total(row.square() @ square).sqrt())
        row = inverse((square @ column.square()).sqrt())
    return u * row[:, None] * column


def inverse(x: Tensor) -> Tensor:
    """1 / x, and 0 where x is 0: a row or column of zeros stays one."""
    return torch.where(x > 0, 1 / x, 0)


def lr_factor(progress: float, *, warmup: float, hold: float = 28 / 45, end: float = 40 / 45) -> float:
    """Share of the peak rate when `progress` (0 to 1) of a run is done.

    Linear over `warmup`, constant until `hold`, cosine to 0.1 until `end`, constant: the report's 28 T and 40 T
    of 45 T tokens.
    """
    if progress < warmup:
        return progress / warmup
    way = min(max((progress - hold) / (end - hold), 0.0), 1.0)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * way))


class Optimizer:
    """Updates master weights, in float32 even where the parameters are bfloat16, and hands them over, rounded or not.

    `parameters`: (name, parameter) pairs; `balance` parameters are left out. `stacks` maps the end of a name to the
    number of matrices stacked in its rows: heads of a query projection, groups of an output projection. Each is
    orthogonalised alone, as is each matrix of a parameter [E, out, in]. `total` sums a vector over the processes
    among which the rows of Engram's tables are split.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        stacks: Mapping[str, int],
        total: Callable[[Tensor], Tensor] = torch.clone,
    ) -> None:
        self.total = total
        self.parameters = {name: p for name, p in parameters if rule(name) != "balance"}
        self.master = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in self.parameters.items()
        }
        self.kinds = {name: rule(name) for name in self.parameters}
        for name, kind in self.kinds.items():
            if kind == "matrix" and self.master[name].ndim < 2:
                raise ValueError(f"{name} has shape {list(self.master[name].shape)}: no rule in optim.RULES fits it")
        adam = [name for name, kind in self.kinds.items() if kind in ("gain", "scalar")]
        self.momentum = {name: torch.zeros_like(m) for name, m in self.master.items() if name not in adam}
        self.stacks = stacks
        groups = {kind: [self.master[name] for name in adam if self.kinds[name] == kind] for kind in ("gain", "scalar")}
        decay = {"gain": WEIGHT_DECAY, "scalar": 0.0}
        self.adam = (
            torch.optim.AdamW(
                [{"params": p, "weight_decay": decay[kind]} for kind, p in groups.items() if p],
                betas=(0.9, 0.95),
                eps=EPS,
                foreach=True,
            )
            if adam
            else None
        )

    @torch.no_grad()
    def step(self, lr: float, *, rounded: Callable[[str, Tensor], Tensor] | None = None) -> None:
        """One update at rate `lr` from the parameters' gradients, which are cleared.

        `rounded(name, master)` gives the value that the parameter holds; without it, the master itself.
        """
        gradients = {n: p.grad.to(self.master[n].dtype) for n, p in self.parameters.items() if p.grad is not None}
        self.step_matrices(lr, gradients)
        for name, g in gradients.items():
            if self.kinds[name] in ("embedding", "table"):
                speed, total = (TABLE_SPEED, self.total) if self.kinds[name] == "table" else (1.0, torch.clone)
                update = sinkhorn_balance(self.nesterov(name, g, damping=MOMENTUM), total=total) * math.sqrt(g.shape[1])
                self.master[name].sub_(update, alpha=lr * speed * UPDATE_RMS)
            elif self.kinds[name] != "matrix":
                self.master[name].grad = g
        if self.adam:
            for group in self.adam.param_groups:
                group["lr"] = lr
            self.adam.step()
            self.adam.zero_grad()
        for p in self.parameters.values():
            p.grad = None
        self.publish(rounded)

    def step_matrices(self, lr: float, gradients: dict[str, Tensor]) -> None:
        """Muon. Matrices of one shape are orthogonalised in one batch."""
        batches: dict[tuple[int, ...], list[tuple[str, Tensor]]] = defaultdict(list)
        for name, g in gradients.items():
            if self.kinds[name] == "matrix":
                m = self.matrices(name, self.nesterov(name, g, damping=0.0))
                batches[m.shape[1:]].append((name, m))
        for (rows, columns), members in batches.items():
            scale = lr * UPDATE_RMS * math.sqrt(max(rows, columns))
            updates = newton_schulz(torch.cat([m for _, m in members]))
            for (name, _), update in zip(members, updates.split([len(m) for _, m in members]), strict=True):
                master = self.master[name]
                master.mul_(1 - lr * WEIGHT_DECAY).sub_(update.reshape(master.shape), alpha=scale)

    def nesterov(self, name: str, g: Tensor, *, damping: float) -> Tensor:
        """M <- 0.95 M + (1 - damping) G; returns 0.95 M + (1 - damping) G with the new M."""
        m = self.momentum[name].mul_(MOMENTUM).add_(g, alpha=1 - damping)
        return (m * MOMENTUM).add_(g, alpha=1 - damping)

    def matrices(self, name: str, m: Tensor) -> Tensor:
        """`m` as a stack of the matrices [count, rows, columns] that are orthogonalised apart."""
        count = next((n for end, n in self.stacks.items() if name.endswith(end)), 1)
        return m if m.ndim == 3 else m.unflatten(0, (count, -1))

    @torch.no_grad()
    def publish(self, rounded: Callable[[str, Tensor], Tensor] | None = None) -> None:
        """Hand the master weights to the parameters."""
        for name, p in self.parameters.items():
            p.copy_(rounded(name, self.master[name]) if rounded else self.master[name])

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step needs, as named tensors."""
        tensors = {f"master.{name}": m for name, m in self.master.items()}
        tensors |= {f"momentum.{name}": m for name, m in self.momentum.items()}
        for name, m in self.master.items():
            if self.adam and m in self.adam.state:
                tensors |= {f"adam.{key}.{name}": value for key, value in self.adam.state[m].items()}
        return tensors

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave. The parameters change at the next `step` or `publish`."""
        for name, m in self.master.items():
            m.copy_(tensors[f"master.{name}"])
            if name in self.momentum:
                self.momentum[name].copy_(tensors[f"momentum.{name}"])
            elif f"adam.step.{name}" in tensors:
                keys = ("step", "exp_avg", "exp_avg_sq")
                self.adam.state[m] = {key: tensors[f"adam.{key}.{name}"].clone() for key in keys}
