from pathlib import Path

import pytest

from headrace.config import Config
from headrace.config.load import ConfigError, load


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "headrace.toml"
    file.write_text(text)
    return file


def test_without_any_source_everything_has_its_default() -> None:
    loaded = load(environment={})
    assert loaded.config == Config()
    assert {setting.origin for setting in loaded.settings()} == {"default"}


def test_the_later_source_wins_and_is_named_as_the_origin(tmp_path: Path) -> None:
    file = write(tmp_path, '[log]\nsegment_bytes = "1MiB"\ntail_bytes_max = "2MiB"\nstreams_max = 7\n')
    environment = {"HEADRACE_LOG__TAIL_BYTES_MAX": "3MiB", "HEADRACE_LOG__STREAMS_MAX": "8", "HEADRACE_HUB": "ignored"}
    loaded = load(file, environment=environment, flags=["log.streams_max=9"])
    assert (loaded.config.log.segment_bytes, loaded.config.log.tail_bytes_max, loaded.config.log.streams_max) == (
        1 << 20,
        3 << 20,
        9,
    )
    assert loaded.origins == {
        "log.segment_bytes": str(file),
        "log.tail_bytes_max": "environment HEADRACE_LOG__TAIL_BYTES_MAX",
        "log.streams_max": "flag --set log.streams_max",
    }


def test_durations_lists_and_booleans_from_text() -> None:
    flags = ["limits.stop_s=250ms", 'http.hosts=["hub.lan"]', "http.console=false", "log.data=12"]
    config = load(environment={}, flags=flags).config
    assert config.limits.stop_s == 0.25
    assert config.http.hosts == ["hub.lan"]
    assert config.http.console is False
    assert config.log.data == "12"  # a text setting takes text as it is, even if it looks like a number


def test_tables_with_free_names(tmp_path: Path) -> None:
    text = """
    [security.users.alice]
    secret = "wonderland"
    roles = ["clerk"]
    [[security.roles.clerk]]
    rights = ["read"]
    streams = ["orders.*"]
    [tls.listeners.flight]
    certificate = "flight.pem"
    """
    loaded = load(write(tmp_path, text), environment={})
    assert loaded.config.security.users["alice"].roles == ["clerk"]
    assert loaded.config.security.roles["clerk"][0].streams == ["orders.*"]
    assert loaded.config.tls.listeners["flight"].certificate == "flight.pem"


def test_secrets_are_masked_where_settings_are_shown(tmp_path: Path) -> None:
    text = """
    [security.users.alice]
    secret = "wonderland"
    tokens = ["looking-glass"]
    [wallaroo]
    cookie = "jam"
    [futoin.mac_keys]
    shop = "bm9ib2R5"
    """
    shown = repr(list(load(write(tmp_path, text), environment={}).settings()))
    assert "security.users.alice.secret" in shown
    for secret in ("wonderland", "looking-glass", "'jam'", "bm9ib2R5"):
        assert secret not in shown


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("log.segmnt_bytes=3", "log.segmnt_bytes: there is no such setting; did you mean 'log.segment_bytes'?"),
        ("wallaroo.ok_form=any", "wallaroo.ok_form: was removed: it let v2 connectors in"),
        ("lgo.x=1", "lgo: there is no such section; did you mean 'log'?"),
        ("zzzzz.x=1", "there is no such section; there are log, limits,"),
        ("log.segment_bytes=fast", "log.segment_bytes: 'fast' is not a size such as"),
        ("log.segment_bytes=-1", "log.segment_bytes: expected `int` >= 0; sizes are written as"),
        ("limits.stop_s=soon", "limits.stop_s: 'soon' is not a duration"),
        ("limits.stop_s=true", "limits.stop_s: expected `float`, got `bool`; durations are written as"),
        ("log.streams_max=0", "log.streams_max: expected `int` >= 1"),
        ("log.streams_max=many", "log.streams_max: expected `int`, got `str`"),
        ("listen.http=nowhere", "listen.http: 'nowhere' is not host:port"),
        ("listen.http=host:99999", "listen.http: 'host:99999' is not host:port"),
        ("log.data.x=1", "log.data.x: 'log.data' is a single value and has no keys"),
        ("logging.level=loud", "logging.level: invalid enum value 'loud'; expected one of debug, info, warning, error"),
        ("x=1", "expected section.key=value"),
        ("log.data", "expected section.key=value"),
    ],
)
def test_a_wrong_flag_names_itself_the_key_and_the_expectation(flag: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment={}, flags=[flag])
    assert str(caught.value).startswith("flag --set ")
    assert message in str(caught.value)
    assert caught.value.code == "bad-config"


def test_a_wrong_value_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[log]\nstreams_max = 'x'")
    with pytest.raises(ConfigError, match="log.streams_max: expected `int`, got `str`") as caught:
        load(file, environment={})
    assert caught.value.origin == str(file)


def test_a_wrong_environment_variable_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="environment HEADRACE_LOG__NO_SUCH: log.no_such"):
        load(environment={"HEADRACE_LOG__NO_SUCH": "1"})


def test_a_section_given_as_a_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="log: expected `object`, got `int`"):
        load(write(tmp_path, "log = 3"), environment={})


def test_a_missing_required_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="security.roles.clerk: object missing required field `rights`"):
        load(write(tmp_path, "[[security.roles.clerk]]\nstreams = ['orders']"), environment={})


def test_a_file_that_is_missing_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "absent.toml", environment={})
    with pytest.raises(ConfigError, match="is not TOML"):
        load(write(tmp_path, "[log"), environment={})


def test_every_setting_says_what_it_means() -> None:
    assert [setting.key for setting in load(environment={}).settings() if not setting.description] == []


def test_pipelines_of_the_configuration(tmp_path: Path) -> None:
    text = """
    [[pipeline]]
    name = "paid"
    sql = "SELECT payload FROM stream('orders') WHERE type = 'paid'"
    into = "orders.paid"
    [[pipeline]]
    name = "totals"
    file = "totals.py"
    enabled = false
    """
    loaded = load(write(tmp_path, text), environment={})
    assert [(one.name, one.into, one.enabled) for one in loaded.config.pipeline] == [
        ("paid", "orders.paid", True),
        ("totals", "", False),
    ]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (["sql = 'x'"], "missing required field `name`"),
        (["name = ''\nfile = 'x.py'"], "expected `str` of length >= 1"),
        (["name = 'a'"], "pipeline 'a' needs one of `sql`, `file` and `project`"),
        (["name = 'a'\nsql = 'x'\nfile = 'y'"], "pipeline 'a' needs one of `sql`, `file` and `project`"),
        (["name = 'a'\nsql = 'x'"], "pipeline 'a' needs `into`"),
        (["name = 'a'\nfile = 'x.py'"] * 2, "two pipelines are named a"),
        (["name = 'a'\nfile = 'x.py'\nsink = 'b'"], "unknown field `sink`"),
    ],
)
def test_pipelines_that_cannot_run_are_refused_at_the_start(tmp_path: Path, entries: list[str], problem: str) -> None:
    file = write(tmp_path, "".join(f"[[pipeline]]\n{entry}\n" for entry in entries))
    with pytest.raises(ConfigError, match=problem) as caught:
        load(file, environment={})
    assert caught.value.origin == str(file)
