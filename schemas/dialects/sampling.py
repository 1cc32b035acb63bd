"""What the two APIs and the engine call by the same name but bound differently."""


def draws(temperature: float, top_p: float, top_k: int) -> tuple[float, float, int]:
    """Return temperature, top_p and top_k as the engine takes them.

    A nucleus of nothing (top_p 0) is legal in both APIs and means the likeliest token alone, but
    engines want top_p above 0, so it becomes top_k 1. A top_k of -1 is how some clients say
    "no limit".
    """
    if top_p == 0.0:
        return temperature, 1.0, 1
    return temperature, top_p, max(top_k, 0)
