"""Lesson 10's open exercise: whose windows to give up when the shelf is full."""

from __future__ import annotations

from functools import cache

from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.rush import Turn, Waiting, afternoon, package_share, share_found

ROOM = 12


@cache
def turns() -> tuple[Turn, ...]:
    return tuple(afternoon())


@cache
def own_share() -> float:
    return package_share(turns(), room=ROOM)


def victim(waiting: Waiting) -> int:
    gone = [i for i, (who, idle) in enumerate(waiting) if who == "agent" and idle > 15]
    return gone[0] if gone else 0


VICTIM = Exercise(
    name="10.victim",
    inputs=lambda: [{}],
    reference=lambda: own_share(),
    use=lambda answer: share_found(answer, turns(), room=ROOM),
    accept=lambda share, own: share > own + 5,
    versus={
        "en": "with yours {value} % of later turns find their windows, with the package's shelf "
        "{right} % (beat it by 5 points)",
        "zh": "你的策略让 {value}% 的后续轮次找到滑窗，代码库的为 {right}%（请高出 5 个百分点）",
    },
    solution=victim,
    why={
        "en": "What counts is who will come back, and a pause tells. An agent that has been silent for 15 seconds has "
        "most likely finished; a person silent for two minutes is still reading. The longest idle is the right guess "
        "only among equals.",
        "zh": "关键是谁还会回来，而停顿会说话。沉默了 15 秒的智能体多半已经结束；沉默几分钟的人还在阅读。"
        "“闲置最久者”只在同类之间才是正确的猜测。",
    },
    hints=(
        {
            "en": "Who comes back after ten seconds, who after ten minutes?",
            "zh": "谁会在十秒后回来，谁会在十分钟后回来？",
        },
        {
            "en": "The longest idle stands first: index 0 is the package's choice.",
            "zh": "闲置最久的排在最前：下标 0 就是代码库的选择。",
        },
        {
            "en": "Give up an agent that is idle for more than 15 seconds, if there is one, else index 0.",
            "zh": "若有闲置超过 15 秒的智能体就放弃它，否则放弃下标 0。",
        },
    ),
    mistakes=(
        Mistake(
            name="the longest idle",
            answer=lambda waiting: 0,
            thought={
                "en": "That is what the package does. It treats a person who reads like an agent that has gone.",
                "zh": "这就是代码库的做法。它把正在阅读的人当成已经离开的智能体。",
            },
        ),
        Mistake(
            name="the newest",
            answer=lambda waiting: len(waiting) - 1,
            thought={
                "en": "You give up whoever has just spoken, the likeliest of all to come back soon.",
                "zh": "你放弃了刚刚说过话的，而它们最可能马上回来。",
            },
        ),
        Mistake(
            name="people first",
            answer=lambda waiting: next((i for i, (who, _) in enumerate(waiting) if who == "person"), 0),
            thought={
                "en": "You give up people for agents that finished long ago: nobody needs those windows.",
                "zh": "你为早已结束的智能体放弃了人：那些滑窗再也没有人需要。",
            },
        ),
    ),
)
