"""Configuration: casts, all problems at once, secrets masked, round trip to a child."""

from pathlib import Path

import pytest

from infra.config import Config, load, variables
from infra.errors import ConfigError


def test_empty_environment_gives_the_defaults() -> None:
    """With no variable set, every setting has its default."""
    assert load({}) == Config()


def test_other_variables_are_none_of_ours() -> None:
    """Variables without our prefix are ignored."""
    assert load({"PATH": "/bin", "MILL": "x"}) == Config()


def test_values_are_cast() -> None:
    """Text becomes numbers, paths, bytes and choices."""
    config = load(
        {
            "MILLSTREAM_PORT": "0",
            "MILLSTREAM_DATA_DIR": "/tmp/x",
            "MILLSTREAM_LOCATOR_KEY": "ab" * 32,
            "MILLSTREAM_ENGINE": "scripted",
            "MILLSTREAM_LISTEN_FD": "7",
            "MILLSTREAM_SCRIPTED_STEP_MS": "0.5",
            "MILLSTREAM_KAFKA": "a:1,b:2",
        }
    )
    assert (config.port, config.data_dir, config.locator_key) == (0, Path("/tmp/x"), b"\xab" * 32)
    assert (config.engine, config.listen_fd, config.scripted_step_ms) == ("scripted", 7, 0.5)
    assert config.kafka == "a:1,b:2"


def test_all_problems_are_reported_at_once() -> None:
    """Each bad value and each unknown variable is named in one error, with what was wanted."""
    with pytest.raises(ConfigError) as caught:
        load(
            {
                "MILLSTREAM_PORT": "70000",
                "MILLSTREAM_PROT": "1",
                "MILLSTREAM_ENGINE": "gpt",
                "MILLSTREAM_KAFKA": "nowhere",
                "MILLSTREAM_CLICKHOUSE_URL": "ftp://x",
                "MILLSTREAM_POOL": "Upper",
            }
        )
    said = str(caught.value)
    for part in ("MILLSTREAM_PORT: '70000' given", "a whole number from 0 to 65535", "'gpt'"):
        assert part in said
    assert "MILLSTREAM_PROT: no such setting (did you mean MILLSTREAM_PORT?)" in said
    for name in ("KAFKA", "CLICKHOUSE_URL", "POOL"):
        assert f"MILLSTREAM_{name}: " in said


def test_secrets_stand_neither_in_text_nor_in_errors() -> None:
    """A configuration's text form and the error about a secret do not show it."""
    config = load(
        {
            "MILLSTREAM_LOCATOR_KEY": "ab" * 32,
            "MILLSTREAM_CLICKHOUSE_PASSWORD": "hush",
            "MILLSTREAM_KEY": "sk-ms-hush",
        }
    )
    assert "hush" not in repr(config)
    assert "abab" not in repr(config)
    with pytest.raises(ConfigError) as caught:
        load({"MILLSTREAM_LOCATOR_KEY": "not-hex-hush"})
    assert "hush" not in str(caught.value)


def test_settings_that_do_not_fit_together_are_refused() -> None:
    """A heartbeat longer than a third of the session is refused."""
    with pytest.raises(ConfigError, match="HEARTBEAT_MS"):
        load({"MILLSTREAM_HEARTBEAT_MS": "5000", "MILLSTREAM_SESSION_TIMEOUT_MS": "6000"})


def test_variables_rebuild_the_same_configuration() -> None:
    """What a supervisor hands to a child yields the very configuration it meant."""
    config = Config(
        process="worker-3",
        data_dir=Path("/d"),
        locator_key=b"k" * 32,
        listen_fd=9,
        scripted_step_ms=0.25,
        clickhouse_password="p w",
        engine="scripted",
    )
    assert load(variables(config)) == config
    assert load(variables(Config())) == Config()


def test_an_engine_runs_no_more_than_its_worker_takes() -> None:
    """Room for more replies in the engine than requests at the worker is refused, by name."""
    with pytest.raises(ConfigError, match="MILLSTREAM_RUNS_MAX"):
        load({"MILLSTREAM_RUNS_MAX": "300"})
    bounds = {"MILLSTREAM_RUNS_MAX": "300", "MILLSTREAM_WORKER_INFLIGHT_MAX": "300"}
    assert load(bounds).runs_max == 300
