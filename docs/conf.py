"""The site: ``python -m sphinx -W --keep-going -b html docs docs/_build/html``.

Pages are Markdown that reads well on GitHub too. Four things are made while building:
stubs of the public names (autosummary), the gallery of the tutorials, the references of
all docstrings, and links: a file that is not on the site is shown in the repository.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from pathlib import Path

from docutils import nodes
from sphinx.util.nodes import make_refnode

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]

import gallery
import references

from botorch_structured import __version__

project = "botorch-structured"
author = "The botorch-structured developers"
project_copyright = author
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "_static", "_templates", "jupyter_execute"]
templates_path = ["_templates"]

# Pages ----------------------------------------------------------------------------
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
# Notebooks are committed with their outputs; the tests run them.
nb_execution_mode = "off"
nb_merge_streams = True

# Docstrings -----------------------------------------------------------------------
default_role = "py:obj"
napoleon_numpy_docstring = False
# One list in the class's docstring, not an object each: autodoc has some of them, too.
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"

# References that only modules without a page cite.
suppress_warnings = ["ref.citation"]

intersphinx_timeout = 10
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
    "gpytorch": ("https://docs.gpytorch.ai/en/stable", None),
    "botorch": ("https://botorch.readthedocs.io/en/stable", None),
    "optuna": ("https://optuna.readthedocs.io/en/stable", None),
    "sklearn": ("https://scikit-learn.org/stable", None),
}

# Theme ----------------------------------------------------------------------------
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_theme_options = {
    "top_of_page_buttons": ["view"],
    "source_repository": gallery.SOURCE,
    "source_branch": "main",
    "source_directory": "docs/",
    "light_css_variables": {"color-brand-primary": "#2563a8"},
    "dark_css_variables": {"color-brand-primary": "#7fb2e8"},
}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True


class _Offline(logging.Filter):
    """Without a network, names of other packages are plain text, which is no defect."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "failed to reach any of the inventories" in str(record.msg):
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True


def _links(app, docname: str, source: list[str]) -> None:
    """A file of the repository that is not on the site: on GitHub."""
    folder = Path(app.env.doc2path(docname)).parent

    def target(found: re.Match[str]) -> str:
        path, _, section = found[1].partition("#")
        file = Path(os.path.normpath(folder / path))
        if file.is_relative_to(DOCS) or not file.exists():
            return found[0]
        name = file.relative_to(ROOT).as_posix()
        if name.startswith("tutorials/") and file.suffix == ".ipynb":
            return f"](/{name})"
        link = f"{gallery.SOURCE}/blob/main/{name}"
        return f"]({link}#{section})" if section else f"]({link})"

    source[0] = re.sub(r"\]\((\.\./[^)\s]+)\)", target, source[0])


def _included(app, path: Path, docname: str, content: list[str]) -> None:
    """What the README shows by its address on GitHub is on the site, if it is here."""
    raw = gallery.SOURCE.replace("github.com", "raw.githubusercontent.com")
    for start in (f"{gallery.SOURCE}/blob/main/docs/", f"{raw}/main/docs/"):
        content[0] = content[0].replace(f"]({start}", "](/")


def _named(app, env, node, text) -> nodes.reference | None:
    """A name in a docstring is a link, whichever of our modules it is from."""
    if node.get("refdomain") != "py":
        return None
    domain = env.get_domain("py")
    found = domain.find_obj(env, None, None, node["reftarget"].strip("()"), None, 1)
    if len(found) != 1:
        return None
    name, entry = found[0]
    source = node["refdoc"]
    return make_refnode(app.builder, source, entry.docname, entry.node_id, text, name)


def _equations(app, doctree, docname: str) -> None:
    """The function of an equation, in the table of a family: its code on GitHub."""
    package = docname.removeprefix("api/generated/")
    if not re.fullmatch(r"botorch_structured\.models\.[a-z]+", package):
        return
    for node in list(doctree.findall(nodes.literal)):
        place = references.line_of(node.astext(), package)
        if place and not isinstance(node.parent, nodes.reference):
            uri = f"{gallery.SOURCE}/blob/main/{place[0]}#L{place[1]}"
            node.replace_self(nodes.reference("", "", node.deepcopy(), refuri=uri))


def _skip(app, what: str, name: str, obj, skip: bool, options) -> bool | None:
    """The fields of named tuples are in the docstring of their class."""
    return True if str(obj.__doc__).startswith("Alias for field") else None


def _source(app, page: str, template: str, context: dict, doctree) -> None:
    """Pages that the build makes have no source in the repository."""
    if page.startswith(("api/generated/", "tutorials/")):
        context["page_source_suffix"] = ""


def setup(app) -> None:
    """What runs while building."""
    logging.getLogger("sphinx.sphinx.ext.intersphinx").addFilter(_Offline())
    shutil.rmtree(DOCS / "tutorials", ignore_errors=True)
    gallery.write(ROOT / "tutorials", DOCS / "tutorials")
    references.write(
        ROOT / "botorch_structured", DOCS / "api" / "generated" / "references.rst"
    )
    app.connect("autodoc-process-docstring", references.strip, priority=400)
    app.connect("source-read", _links)
    app.connect("include-read", _included)
    app.connect("missing-reference", _named)
    app.connect("doctree-resolved", _equations)
    app.connect("autodoc-skip-member", _skip)
    app.connect("html-page-context", _source)
