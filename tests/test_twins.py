"""Which version of an operation runs, and that it can be seen."""

import sys
from types import ModuleType

import pytest
import torch

from minidsv41 import ops
from minidsv41.ops import twins
from minidsv41.replaced import replaced


def doubled(x: torch.Tensor, *, by: int = 2) -> torch.Tensor:
    return x * by


@pytest.fixture
def operation(monkeypatch):
    """A twin whose kernel adds 100, so that it shows; what it refuses and breaks on is in `by`."""
    pytest.importorskip("triton")
    from minidsv41.kernels.launch import require

    def kernel(x: torch.Tensor, *, by: int = 2) -> torch.Tensor:
        require(by != 3, f"by = {by}: allowed is anything else")
        if by == 5:
            raise RuntimeError("broken")
        return x * by + 100

    module = ModuleType("minidsv41.kernels.doubling")
    module.doubled = kernel
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(twins, "_loaded", {})
    return twins.twin(doubled, kernel="doubling.doubled")


def interpreted() -> bool:
    from minidsv41.kernels.launch import INTERPRETED

    return INTERPRETED


def test_cpu_tensors_go_to_the_plain_version(operation):
    with ops.versions() as seen:
        assert operation(torch.ones(1)) == 2
    assert seen.ran == {("doubled", "plain"): 1}
    assert operation(torch.ones(1)) == 2  # and outside of any block


def test_a_kernel_can_be_asked_for(operation):
    if not interpreted():
        pytest.skip("CPU tensors need the interpreter")
    with ops.versions("kernels") as seen:
        assert operation(torch.ones(1)) == 102
        with ops.versions("plain") as inner:
            assert operation(torch.ones(1)) == 2
    assert inner.ran == {("doubled", "plain"): 1}
    assert seen.summary() == {"doubled": {"kernel": 1, "plain": 1}}  # outer blocks see it too


def test_without_the_interpreter_cpu_tensors_are_refused(operation, monkeypatch):
    from minidsv41.kernels import launch

    monkeypatch.setattr(launch, "INTERPRETED", False)
    with ops.versions("kernels"), pytest.raises(launch.Unsupported, match="TRITON_INTERPRET=1"):
        operation(torch.ones(1))


def test_what_the_kernel_refuses_goes_to_the_plain_version_unless_kernels_are_asked_for(operation, monkeypatch):
    monkeypatch.setattr(twins, "on_gpu", lambda args: True)
    monkeypatch.setattr("minidsv41.kernels.launch.INTERPRETED", True)
    with ops.versions() as seen:
        assert operation(torch.ones(1), by=3) == 3
        assert operation(torch.ones(1), by=4) == 104
    assert seen.summary() == {"doubled": {"kernel": 1, "plain": 1, "refused": "by = 3: allowed is anything else"}}
    with ops.versions("kernels"), pytest.raises(ValueError, match="by = 3: allowed"):
        operation(torch.ones(1), by=3)


def test_other_errors_of_a_kernel_are_not_hidden(operation, monkeypatch):
    monkeypatch.setattr(twins, "on_gpu", lambda args: True)
    monkeypatch.setattr("minidsv41.kernels.launch.INTERPRETED", True)
    with pytest.raises(RuntimeError, match="broken"):
        operation(torch.ones(1), by=5)


def test_a_kernel_that_cannot_be_imported_is_missed_only_where_it_must_run(monkeypatch):
    monkeypatch.setattr(twins, "_loaded", {})
    monkeypatch.setattr(twins, "on_gpu", lambda args: True)
    operation = twins.twin(doubled, kernel="no_such_file.doubled")
    with ops.versions() as seen:
        assert operation(torch.ones(1)) == 2
    assert "no_such_file" in seen.refused["doubled"]
    for _ in range(2):
        with ops.versions("kernels"), pytest.raises(ImportError, match="no_such_file"):
            operation(torch.ones(1))


def test_float64_and_cpu_tensors_are_no_work_for_a_kernel():
    class Far(torch.Tensor):
        is_cuda = True

    assert not twins.on_gpu((torch.ones(1), torch.ones(1).as_subclass(Far)))  # the first tensor decides
    assert twins.on_gpu((None, torch.ones(1).as_subclass(Far)))
    assert not twins.on_gpu((torch.ones(1, dtype=torch.float64).as_subclass(Far),))
    assert not twins.on_gpu(("no tensor",))


def test_keys_that_are_no_stored_rows_go_to_the_plain_version(operation, monkeypatch):
    class Overlay:
        def gather(self, seq, index):
            return index

        def __mul__(self, other):
            return "plain"

    monkeypatch.setattr(twins, "on_gpu", lambda args: True)
    monkeypatch.setattr("minidsv41.kernels.launch.INTERPRETED", True)
    with ops.versions() as seen:
        assert operation(Overlay()) == "plain"
    assert seen.refused == {"doubled": "doubled: Overlay: its kernel reads stored rows only (Rows)"}


def test_training_can_have_a_kernel_of_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr(twins, "load", lambda kernel: lambda x: asked.append(kernel))
    monkeypatch.setattr("minidsv41.kernels.launch.INTERPRETED", True)
    operation = twins.twin(doubled, kernel="one.doubled", training="other.doubled")
    with ops.versions("kernels"):
        operation(torch.ones(1))
        operation(torch.ones(1, requires_grad=True))
        with torch.no_grad():
            operation(torch.ones(1, requires_grad=True))
    assert asked == ["one.doubled", "other.doubled", "one.doubled"]


def test_a_kernel_without_gradients_leaves_them_to_the_plain_version(operation):
    x = torch.ones(1, requires_grad=True)
    with ops.versions("kernels") as seen:
        assert operation(x).requires_grad
        table = torch.zeros(1, 1, dtype=torch.int64)
        assert twins.graded((ops.Rows(x[:, None], table, 1),)) and not twins.graded((ops.Rows(table, table, 1),))
    assert seen.summary() == {"doubled": {"plain": 1, "refused": "it has no gradients"}}


def test_another_choice_is_refused():
    with pytest.raises(ValueError, match="versions = 'fast': allowed are auto, plain, kernels"), ops.versions("fast"):
        pass


def test_an_error_in_a_block_closes_it():
    with pytest.raises(KeyError), ops.versions("kernels"):
        raise KeyError
    assert not twins._blocks


def test_an_operation_can_still_be_replaced():
    with replaced(ops, "seam", lambda original: lambda *args: "patched"):
        assert ops.seam() == "patched"
    assert ops.seam.plain.__module__ == "minidsv41.ops.seam"
