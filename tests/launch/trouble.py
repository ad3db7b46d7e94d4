"""Models for the launcher's tests that do what real code sometimes does, in the middle of training."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from torch import Tensor, nn


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Trouble(nn.Module):
    """One linear layer. Rank ``rank`` does ``what`` in its step ``at``; every step takes ``pause_s`` more."""

    def __init__(self, what: str = "nothing", at: int = 3, rank: int = 0, pause_s: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Linear(64, 10)
        self.what = what if os.environ["RANK"] == str(rank) else "nothing"
        self.at, self.pause_s, self.calls = at, pause_s, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += self.training
        if self.calls == self.at:
            self.make_trouble()
        time.sleep(self.pause_s)
        out: Tensor = self.net(images.flatten(1))
        return out

    def make_trouble(self) -> None:
        if self.what == "raise":
            raise ValueError("sample 17 is broken")
        if self.what == "raise speechless":
            raise SpeechlessError
        if self.what == "linger":
            threading.Thread(target=time.sleep, args=[600]).start()
        if self.what == "exit":
            sys.exit(3)
        if self.what == "leave":
            os._exit(0)
        if self.what == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.what == "talk":
            for line in range(200_000):
                print(f"line {line} {'x' * 80}")


def build(**args: object) -> nn.Module:
    return Trouble(**args)  # type: ignore[arg-type]
