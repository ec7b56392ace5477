import pytest

from gpuplane.run import procfile
from gpuplane.run.preflight import ROOT


def test_reads_names_and_commands(tmp_path):
    path = tmp_path / "Procfile"
    path.write_text("# comment\n\nweb: python -m web --name 'two words'\nworker:run\n")

    assert procfile.read(path) == {"web": ["python", "-m", "web", "--name", "two words"], "worker": ["run"]}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("web python", "Procfile:1", id="no colon"),
        pytest.param("web: a\nweb: b", "stands there twice", id="a name twice"),
    ],
)
def test_refuses(tmp_path, text, want):
    path = tmp_path / "Procfile"
    path.write_text(text)

    with pytest.raises(procfile.BadProcfile, match=want):
        procfile.read(path)


def test_ours_names_every_process():
    assert set(procfile.read(ROOT / "Procfile")) == {"redis", "web", "worker", "watch", "beat", "simulator"}
