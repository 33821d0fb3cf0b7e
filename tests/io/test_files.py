"""Local and remote files: globs, atomic writing, files left by killed processes, and errors."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from unittest import mock

import pytest
import tensorflow as tf

from albert.errors import RunError, UserError
from albert.io import files, local_files
from albert.io.files import expand_globs
from tests.file_limits import file_size_limit


def test_globs_match_each_file_once_in_sorted_order(tmp_path: Path) -> None:
  for name in ("b.txt", "a.txt", "c.text", "odd[1].txt"):
    (tmp_path / name).write_text("x")
  (tmp_path / "sub").mkdir()
  (tmp_path / "sub" / "d.txt").write_text("x")
  paths = expand_globs(f"{tmp_path}/b.txt, {tmp_path}/*.txt,{tmp_path}/**/d.txt,{tmp_path}/odd[1].txt")
  assert [os.path.relpath(path, tmp_path) for path in paths] == ["a.txt", "b.txt", "odd[1].txt", "sub/d.txt"]


def test_an_existing_directory_is_not_taken_for_a_glob(tmp_path: Path) -> None:
  directory = tmp_path / "a[1],b\\c"
  directory.mkdir()
  for name in ("x1.txt", "x2.txt", "y,z.txt"):
    (directory / name).write_text("x")
  assert expand_globs(f"{directory}/x[2-9]*") == [f"{directory}/x2.txt"]
  assert expand_globs(f"{directory}/y,z.txt") == [f"{directory}/y,z.txt"]
  assert len(expand_globs(f"{directory}/**")) == 3


@pytest.mark.parametrize("name", ["run[v2]", "a\\b"])
def test_tensorflow_finds_a_path_that_it_takes_for_a_glob(
  tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  directory = tmp_path / name
  module = tf.Module()
  module.v = tf.Variable([2.0, 3.0])
  tf.saved_model.save(module, str(directory))
  prefix = tf.train.Checkpoint(v=module.v).write(str(directory / name))
  with files.tensorflow_path(str(directory)) as path:
    assert tf.saved_model.load(path).v.numpy().tolist() == [2, 3]
  monkeypatch.setattr(tempfile, "tempdir", str(directory))
  with files.tensorflow_path(prefix) as path:
    assert "v/.ATTRIBUTES/VARIABLE_VALUE" in tf.train.load_checkpoint(path).get_variable_to_shape_map()
  assert not os.path.lexists(path)
  assert os.listdir(tmp_path) == [name]


def test_globs_without_files_and_empty_files_and_directories_are_refused(tmp_path: Path) -> None:
  (tmp_path / "empty").touch()
  (tmp_path / "full").write_text("x")
  with pytest.raises(UserError, match="--train_file is empty"):
    expand_globs(" , ", flag="--train_file")
  with pytest.raises(UserError, match=re.escape(f"--input_file: '{tmp_path}/absent*' matches no file")):
    expand_globs(f"{tmp_path}/full,{tmp_path}/absent*")
  with pytest.raises(UserError, match=f"{tmp_path}/empty is empty"):
    expand_globs(f"{tmp_path}/*")
  with pytest.raises(UserError, match=f"{tmp_path} is a directory"):
    expand_globs(str(tmp_path))


def test_two_stars_find_each_file_once_though_links_lead_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  (tmp_path / "b" / "c").mkdir(parents=True)
  (tmp_path / ".hidden").mkdir()
  for name in ("a.txt", "b/b.txt", "b/c/c.txt", ".hidden/x.txt"):
    (tmp_path / name).write_text("x")
  for name in ("again", "b/once", "b/c/more", "b/c/most"):  # links to tmp_path, so each makes a loop
    (tmp_path / name).symlink_to(tmp_path)
  (tmp_path / "b" / "loop").symlink_to("loop")
  outside = tmp_path.parent / f"{tmp_path.name}-outside"
  outside.mkdir()
  (outside / "d.txt").write_text("x")
  (tmp_path / "outside").symlink_to(outside)

  def matches(pattern: str) -> list[str]:
    return [os.path.relpath(path, tmp_path) for path in expand_globs(f"{tmp_path}/{pattern}")]

  assert matches("**/*.txt") == ["a.txt", "b/b.txt", "b/c/c.txt", "outside/d.txt"]
  assert matches("b/**/c/*.txt") == ["b/c/c.txt"]
  assert matches("*/d.txt") == ["outside/d.txt"]
  assert matches("a.**") == ["a.txt"]  # the same as a.*
  scandir = os.scandir
  monkeypatch.setattr(os, "scandir", lambda path: scandir(path if path != f"{tmp_path}/b" else f"{tmp_path}/absent"))
  with pytest.raises(UserError, match=f"{tmp_path}/absent: cannot list it"):
    matches("**/*.txt")


def test_broken_links_are_refused(tmp_path: Path) -> None:
  (tmp_path / "b").mkdir()
  (tmp_path / "b" / "loop").symlink_to("loop")
  (tmp_path / "gone.txt").symlink_to(tmp_path / "target")
  with pytest.raises(UserError, match=r"gone.txt: is a link to .*target, which cannot be read \(No such file"):
    expand_globs(f"{tmp_path}/*.txt")
  with pytest.raises(UserError, match=r"b/loop: is a link to loop, which cannot be read \(Too many levels"):
    expand_globs(f"{tmp_path}/b/lo*")


def test_pipes_sockets_and_devices_are_refused_without_waiting_for_them(tmp_path: Path) -> None:
  os.mkfifo(tmp_path / "pipe.txt")
  with socket.socket(socket.AF_UNIX) as server:
    server.bind(str(tmp_path / "socket.txt"))
  for path, kind in ((tmp_path / "pipe.txt", "pipe"), (tmp_path / "socket.txt", "socket"), ("/dev/null", "device")):
    for read in (files.open_file, expand_globs, files.read_json):
      with pytest.raises(UserError, match=f"{path} is a {kind}, not a regular file: "):
        read(str(path))
  with pytest.raises(UserError, match=r"pipe.txt is a pipe"):
    expand_globs(f"{tmp_path}/*.txt")
  writer = threading.Thread(target=lambda: (tmp_path / "pipe.txt").write_bytes(b"text"))
  writer.start()
  with files.open_file(str(tmp_path / "pipe.txt"), or_pipe=True) as file:
    assert file.read() == b"text"
  writer.join()


def test_texts_and_bytes_are_written_and_replace_the_earlier_content(tmp_path: Path) -> None:
  path = tmp_path / "file"
  files.write_atomically(str(path), "é")
  assert path.read_bytes() == b"\xc3\xa9"
  files.write_atomically(str(path), b"\x00")
  assert path.read_bytes() == b"\x00"
  assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace"])
def test_a_failed_write_leaves_the_earlier_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
  path = tmp_path / "file"
  path.write_text("before")
  with contextlib.ExitStack() as failure:
    if step == "write":
      reason = os.strerror(errno.EFBIG)
      failure.enter_context(file_size_limit(3))
    else:
      reason = os.strerror(errno.ENOSPC)
      monkeypatch.setattr(os, step, mock.Mock(side_effect=OSError(errno.ENOSPC, reason)))
    with pytest.raises(RunError) as raised:
      files.write_atomically(str(path), "after")
  assert str(raised.value) == (
    f"{path}: cannot write it ({reason}): run the same command again once the cause is fixed"
  )
  assert path.read_text() == "before"
  assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
  "read",
  [lambda file: file.read(3), lambda file: file.read(), lambda file: gzip.GzipFile(fileobj=file).read()],
  ids=["size", "all", "gzip"],
)
def test_an_error_while_a_file_is_read_names_the_file(read: Callable[[BinaryIO], bytes]) -> None:
  path = "/proc/self/mem"  # it can be opened, but reading at offset 0 fails with EIO
  with files.open_file(path) as file, pytest.raises(RunError) as raised:
    read(file)
  assert str(raised.value).startswith(f"{path}: cannot read it ({os.strerror(errno.EIO)}): run the same command")


def test_writers_with_the_same_pid_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """In containers, each worker may have the process id 1."""
  monkeypatch.setattr(os, "getpid", lambda: 1)
  path = str(tmp_path / "file")
  failures: list[BaseException] = []

  def write(number: int) -> None:
    try:
      for _ in range(25):
        files.write_atomically(path, f"{number}" * 1000)
    except BaseException as error:
      failures.append(error)

  threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert failures == []
  content = (tmp_path / "file").read_text()
  assert content == content[0] * 1000
  assert os.listdir(tmp_path) == ["file"]


def test_a_file_with_a_long_name_is_written(tmp_path: Path) -> None:
  for name in ("n" * 250, "é" * 120):
    files.write_atomically(str(tmp_path / name), "x")
    assert (tmp_path / name).read_text() == "x"


def test_only_staging_files_of_ended_writers_are_removed(tmp_path: Path) -> None:
  ended_process = subprocess.Popen([sys.executable, "-c", ""])
  ended_process.wait()
  this_host, ended_pid = local_files.host_key(), ended_process.pid
  leftovers = [f".a.{this_host}-{ended_pid}-0123456789ab.tmp", ".b.00000000-1-0123456789ab.tmp"]
  other_files = [
    f".a.{this_host}-{os.getpid()}-0123456789ab.tmp",  # being written
    ".c.00000000-1-0123456789ab.tmp",  # of another host, from today
    f"a.{this_host}-{ended_pid}-0123456789ab.tmp",
    f".a.{ended_pid}.tmp",
    ".mine.tmp",
  ]
  for name in [*leftovers, *other_files]:
    (tmp_path / name).write_text("x")
  directory = tmp_path / f".step-4.{this_host}-{ended_pid}-ba9876543210.tmp"
  (directory / "sub").mkdir(parents=True)
  two_days = 2 * 24 * 3600
  os.utime(tmp_path / leftovers[1], (0, time.time() - two_days))  # of another host, two days old
  for name in (leftovers[0], other_files[1]):  # as if the clock had been set back: such times decide nothing
    os.utime(tmp_path / name, (0, time.time() + two_days))
  files.remove_leftovers(str(tmp_path))
  assert sorted(os.listdir(tmp_path)) == sorted(other_files)
  files.remove_leftovers(str(tmp_path / "absent"))


def test_writing_removes_the_staging_files_of_killed_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(local_files, "has_ended", lambda key, pid: pid == 7)
  for pid in (7, 8):
    (tmp_path / f".model.{local_files.host_key()}-{pid}-0123456789ab.tmp").write_text("half")
  files.write_atomically(str(tmp_path / "model"), "whole")
  assert sorted(os.listdir(tmp_path)) == [f".model.{local_files.host_key()}-8-0123456789ab.tmp", "model"]


def test_a_staging_file_that_cannot_be_removed_is_left_without_an_error(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """Several users, or processes that start at the same time, may clean up the same directory."""
  names = [f".{name}.{local_files.host_key()}-7-0123456789ab.tmp" for name in ("a", "b")]
  for name in names:
    (tmp_path / name).write_text("x")
  monkeypatch.setattr(local_files, "has_ended", lambda key, pid: True)

  def refuse(path: str) -> None:
    if ".a." in path:
      raise PermissionError(1, "Operation not permitted")
    os.unlink(path)

  monkeypatch.setattr(files, "remove", refuse)
  files.remove_leftovers(str(tmp_path))
  assert os.listdir(tmp_path) == names[:1]


def test_errors_name_the_path(tmp_path: Path) -> None:
  with pytest.raises(UserError, match=f"{tmp_path}/absent: cannot read it"):
    files.open_file(str(tmp_path / "absent"))
  with pytest.raises(UserError, match=f"{tmp_path}/absent/file: cannot write it"):
    files.open_file(str(tmp_path / "absent" / "file"), "wb")
  (tmp_path / "file").touch()
  with pytest.raises(UserError, match=f"{tmp_path}/file/sub: cannot make a directory of it"):
    files.makedirs(str(tmp_path / "file" / "sub"))


@pytest.mark.parametrize("scheme", ["", "ram://"])
def test_local_and_remote_files_behave_alike(tmp_path: Path, scheme: str) -> None:
  """TensorFlow's in-memory file system, ram://, takes the place of a remote one."""
  root = files.join(f"ram://{tmp_path.name}" if scheme else str(tmp_path), "dir")
  files.makedirs(files.join(root, "sub"))
  path = files.join(root, "sub", "file")
  assert files.is_remote(path) == bool(scheme)
  files.write_atomically(path, b"some bytes")
  assert files.exists(path)
  assert files.is_dir(root)
  assert not files.is_dir(path)
  assert files.size(path) == 10
  assert files.listdir(root) == ["sub"]
  assert expand_globs(files.join(root, "sub", "f*")) == [path]
  with files.open_file(path) as file:
    file.seek(5)
    assert file.read(3) == b"byt"
  files.replace(path, files.join(root, "moved"))
  assert files.listdir(root) == ["moved", "sub"]
  files.remove(files.join(root, "moved"))
  assert not files.exists(files.join(root, "moved"))
  files.remove_tree(root)
  files.remove_tree(root)
  assert not files.exists(root)
  assert not tf.io.gfile.exists(root)


def test_a_name_on_the_hub_that_is_no_path_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.chdir(tmp_path)
  for directory in ("albert", "my-bert"):
    (tmp_path / directory).mkdir()
  for path in ("albert/albert-base-v2", "indic-bert"):
    assert f"huggingface.co/{path}/" in files.hub_remedy(path)
    assert files.hub_remedy(str(tmp_path / path)) == files.hub_remedy(path)
  assert not any(map(files.hub_remedy, ("runs/albert_base", "run-2", "my-bert", "")))


def test_join_uses_slashes_for_remote_paths() -> None:
  assert files.join("gs://bucket/", "a", "b") == "gs://bucket/a/b"
  assert files.join("dir", "a", "b") == os.path.join("dir", "a", "b")


def test_local_paths_need_no_tensorflow(tmp_path: Path) -> None:
  code = (
    "import sys\nfrom albert.io import files\n"
    f"files.write_atomically({str(tmp_path / 'x')!r}, 'x')\nsys.exit('tensorflow' in sys.modules)"
  )
  assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_error_that_may_go_away_is_a_run_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """The exit code is 1, not 2, because the path is right and the same command may succeed later."""
  for error_number in (errno.EMFILE, errno.ENOSPC, errno.EIO, errno.EDQUOT):
    reason = os.strerror(error_number)
    error = OSError(error_number, reason)
    monkeypatch.setattr(os, "open", mock.Mock(side_effect=error))
    monkeypatch.setattr(os, "makedirs", mock.Mock(side_effect=error))
    for use_file in (lambda: files.open_file("x"), lambda: files.open_file("x", "wb"), lambda: files.makedirs("x")):
      with pytest.raises(RunError, match=rf"^x: cannot .* \({reason}\): run the same command again"):
        use_file()
    monkeypatch.undo()


@pytest.mark.parametrize(
  ("path", "error_type", "message"),
  [
    ("gs://no-bucket/file", RunError, "Error executing an HTTP request: libcurl code"),
    ("nfs://host/file", UserError, "File system scheme 'nfs' not implemented (file: 'nfs://host/file'): give a path"),
  ],
)
def test_errors_of_remote_file_systems_are_one_line(path: str, error_type: type, message: str) -> None:
  with pytest.raises(tf.errors.OpError) as raised:
    files.exists(path)
  error = local_files.convert_file_error(raised.value)
  assert type(error) is error_type
  assert str(error).startswith(message)


def test_only_errors_about_files_are_converted() -> None:
  assert local_files.convert_file_error(ValueError("No space left on device")) is None
  assert local_files.convert_file_error(tf.errors.InvalidArgumentError(None, None, "shapes do not match")) is None
  disk_full = tf.errors.ResourceExhaustedError(None, None, "/disk/file; No space left on device")
  assert type(local_files.convert_file_error(disk_full)) is RunError
  missing = tf.errors.NotFoundError(None, None, "/x; No such file or directory")
  assert type(local_files.convert_file_error(missing)) is UserError


def test_converted_errors_name_the_file_and_the_reason() -> None:
  rename_failed = OSError(errno.ENOSPC, "No space left on device", "a", None, "b")
  message = str(local_files.convert_file_error(rename_failed))
  assert message.startswith("b: cannot use it (No space left on device): run the same")
  assert str(local_files.convert_file_error(OSError("odd"))).startswith("odd: run the same command again")
  assert str(local_files.convert_file_error(OSError())).startswith("OSError: run the same command again")
  with pytest.raises(UnicodeEncodeError) as raised:
    tf.io.gfile.exists(os.fsdecode(b"caf\xe9"))
  message = str(local_files.convert_file_error(raised.value))
  assert "caf\udce9: this name or text has bytes that are not UTF-8" in message


def test_an_error_without_a_message_is_named_by_its_type() -> None:
  with (
    pytest.raises(RunError, match=r"^file: cannot write it \(TimeoutError\): run"),
    files.convert_errors("file"),
  ):
    raise TimeoutError


def test_a_temporary_directory_that_tensorflow_cannot_write_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
  error = tf.errors.InvalidArgumentError(None, None, "iterating over a symbolic tf.Tensor is not allowed")
  assert local_files.temporary_directory_error(error) is None
  broken = mock.Mock(side_effect=OSError(errno.EIO, "Input/output error"))
  monkeypatch.setattr(local_files.tempfile, "TemporaryFile", broken)
  message = str(local_files.temporary_directory_error(error))
  assert re.search(r"cannot write temporary files \(Input/output error\).* set TMPDIR$", message)
  assert local_files.temporary_directory_error(ValueError("not TensorFlow's")) is None


def test_removing_a_link_leaves_its_target(tmp_path: Path):
  (tmp_path / "kept").mkdir()
  (tmp_path / "kept" / "file").write_text("x")
  (tmp_path / "link").symlink_to("kept")
  files.remove_tree(str(tmp_path / "link"))
  assert (tmp_path / "kept" / "file").read_text() == "x"
  assert not (tmp_path / "link").is_symlink()
