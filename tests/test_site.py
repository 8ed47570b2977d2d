"""The docs site: it builds without a warning, has every page, and loads nothing from elsewhere."""

import html.parser
import pathlib
import re
import subprocess
import sys
import urllib.parse

import pytest

import rlvr_jax
from rlvr_jax.registry import names

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


class Links(html.parser.HTMLParser):
    """What a page points to, what it loads, and the places in it."""

    def __init__(self, text):
        super().__init__()
        self.to, self.loaded, self.places = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.places |= {known[name] for name in ("id", "name") if known.get(name)}
        if tag == "a" and known.get("href"):
            self.to.append(known["href"])
        elif tag == "link" and known.get("rel") in ("stylesheet", "preload", "preconnect", "icon"):
            self.loaded.append(known["href"])
        elif known.get("src"):
            self.loaded.append(known["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Path within the site -> a page, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    makefile = (ROOT / "Makefile").read_text()
    (options,) = re.findall(r"^SPHINX := (.*)$", makefile, re.MULTILINE)
    assert "-m sphinx $(SPHINX) docs build/site" in makefile
    words = [*options.split(), "--doctree-dir", str(folder / "doctrees"), str(DOCS), str(folder / "html")]
    built = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return {
        str(p.relative_to(folder / "html")): p.read_text("utf-8") for p in (folder / "html").rglob("*.html")
    }


@pytest.mark.slow
def test_there_is_a_page_of_each_source_and_of_each_notebook(site):
    sources = [p for ending in ("md", "ipynb") for p in DOCS.rglob(f"*.{ending}")]
    notebooks = [f"notebooks/{p.name}" for p in (ROOT / "notebooks").glob("*.ipynb")]
    wanted = {str(pathlib.Path(p).with_suffix(".html")) for p in notebooks}
    wanted |= {str(p.relative_to(DOCS).with_suffix(".html")) for p in sources}
    assert wanted <= set(site)


@pytest.mark.slow
def test_every_link_within_the_site_leads_to_a_page_and_a_place_in_it(site):
    found = {path: Links(text) for path, text in site.items()}
    broken = []
    for path, links in found.items():
        for link in links.to:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = urllib.parse.urljoin(path, url.path) if url.path else path
            place = urllib.parse.unquote(url.fragment)
            if target.endswith(".html") and (
                target not in found or place and place not in found[target].places
            ):
                broken.append((path, link))
    assert not broken


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site):
    for path, text in site.items():
        elsewhere = [url for url in Links(text).loaded if urllib.parse.urlsplit(url).netloc]
        assert not elsewhere, path


@pytest.mark.slow
def test_every_public_name_and_every_task_is_there(site):
    places = Links(site["api.html"]).places | Links(site["config.html"]).places
    public = [
        name
        for name in dir(rlvr_jax)
        if getattr(getattr(rlvr_jax, name), "__module__", "").startswith("rlvr_jax.")
    ]
    assert len(public) > 25
    for name in public:
        assert any(place.startswith("rlvr_jax.") and place.endswith(f".{name}") for place in places), name
    for task in names("task"):
        assert f">{task}</span>" in site["tasks.html"], task


@pytest.mark.slow
def test_the_page_of_recipes_has_every_config_of_a_paper(site):
    for config in (ROOT / "configs" / "papers").glob("*.yaml"):
        assert config.name in site["recipes.html"]
