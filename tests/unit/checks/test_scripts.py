"""The linter of the pages' scripts and styles finds what it is there for."""

import shutil
import subprocess

import pytest

from tests.checks import scripts


@pytest.mark.parametrize(
    ("path", "source", "want"),
    [
        pytest.param("static/js/x.js", "const a = ;\n", "parse", id="a script that cannot be read"),
        pytest.param("static/js/x.js", "export const a = b;\n", "noUndeclaredVariables", id="an undeclared name"),
        pytest.param("static/js/x.js", "import { a } from './a.js';\n", "noUnusedImports", id="an import not used"),
        pytest.param("static/js/x.js", "export const a = (b) => { if (b = 1) b(); };\n", "noAssign", id="= for =="),
        pytest.param("static/css/x.css", "a { colr: red; }\n", "noUnknownProperty", id="a property that is none"),
        pytest.param("static/css/x.css", "a { color: red; color: red; }\n", "noDuplicateProperties", id="twice"),
        pytest.param("static/js/x.js", "export const a = 1;\n", "", id="nothing to say"),
    ],
)  # fmt: skip
def test_findings_in_a_script(tmp_path, path, source, want):
    shutil.copy(scripts.ROOT / "biome.jsonc", tmp_path)
    script = tmp_path / path
    script.parent.mkdir(parents=True)
    script.write_text(source)
    done = subprocess.run(
        scripts.command("--reporter=github"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == bool(want), done.stdout + done.stderr
    assert want in done.stdout
