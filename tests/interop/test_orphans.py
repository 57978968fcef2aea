"""Checkpoints of other toolkits: read as plain data, refused by name if they could run code, and computed alike."""

import argparse
import collections
import io
import json
import math
import os
import pickle
import time
import warnings
import zipfile

import pytest
import reference
import torch
from torch import nn

import regard
from commands import shared_commands
from regard.errors import CorruptError, DataError
from regard.interop import IMPORTS, MARKS, recognised
from regard.interop.orphans import restricted
from regard.interop.orphans.options import Options, parse_yaml
from regard.storage import CARD
from regard.types import BEGIN, Padded

WORDS = ["<unk>", "<pad>", "<s>", "</s>", "one", "two", "three"]
OTHERS = ["<unk>", "<pad>", "<s>", "</s>", "uno", "dos", "tres", "y"]


class Malicious:
    """What an attacker puts into a pickle: a call, made by whoever unpickles it."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def import_joey(folder, parent):
    """The run that an import makes of a JoeyNMT model directory."""
    run, _ = IMPORTS["joeynmt"](folder, "joey", parent)
    return run


def write_pickle(path, content):
    """A file like those of torch.save, with any pickle in it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("name", ["system", "exec"])
def test_a_malicious_pickle_is_refused_by_name_and_runs_nothing(tmp_path, protocol, name):
    canary = tmp_path / "canary"
    calls = {
        "system": (os.system, f"touch {canary}"),
        "exec": (exec, f"open({str(canary)!r}, 'w')"),
    }
    content = pickle.dumps({"model_state": {}, "z": Malicious(*calls[name])}, protocol=protocol)
    write_pickle(tmp_path / "model.ckpt", content)
    with pytest.raises(
        DataError, match=rf"names '(posix|builtins|__builtin__)\.{name}', which could run code.*Nothing was run"
    ):
        restricted.load(tmp_path / "model.ckpt")
    assert not canary.exists()
    if name == "system":  # the canary works: unpickled, it would be there
        pickle.loads(content)
        assert canary.exists()


class Reference:
    """A value that a pickler writes as a persistent id."""

    def __init__(self, *value):
        self.value = value


class StoragePickler(pickle._Pickler):  # in Python, so that names of torch can be written without their classes
    """Writes references as torch does, and names as a pickle has them."""

    def persistent_id(self, value):
        return value.value if isinstance(value, Reference) else None


def assembled(*parts):
    """A pickle of protocol 2: of opcodes and of values, whose own frames are removed."""
    stream = io.BytesIO()
    for part in parts:
        if isinstance(part, bytes):
            stream.write(part)
        else:
            inner = io.BytesIO()
            StoragePickler(inner, protocol=2).dump(part)
            stream.write(inner.getvalue()[2:-1])
    return b"\x80\x02" + stream.getvalue() + b"."


GETATTR = b"c__builtin__\ngetattr\n"
CALLS = {
    "names of protocol 4": (b"\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R", "names 'posix.system'"),
    "a name from the memo": (b"\x8c\x05posix\x94\x8c\x06system\x940h\x00h\x01\x93\x8c\x02id\x85R", "POP"),
    "INST": (b"(iposix\nsystem\n", "names 'posix.system'"),
    "OBJ": (b"(ccollections\nOrderedDict\no", "uses OBJ"),
    "extensions": (b"\x82\x01", "uses EXT1"),
    "NEWOBJ_EX": (b"ccollections\nOrderedDict\n)}\x92", "uses NEWOBJ_EX"),
    "NEWOBJ": (b"csubprocess\nPopen\n(tq\x00\x81", "names 'subprocess.Popen'"),
    "getattr": (GETATTR + b"ctorch._utils\n_rebuild_tensor_v2\nX\x0b\x00\x00\x00__globals__\x86R", "getattr"),
    "a dotted name": (b"\x8c\x05torch\x8c\x0chub.download\x93", "names 'torch.hub.download'"),
    "torch's own loader": (b"ctorch\nload\nX\x01\x00\x00\x00x\x85R", "names 'torch.load'"),
    "numpy's objects": (b"cnumpy.core.multiarray\n_reconstruct\n)R", "numpy.core.multiarray._reconstruct"),
    "a text persistent id": (b"Pid\n", "uses PERSID"),
    "another persistent id": (assembled(Reference("module", "x"))[2:-1], "refers to something that is no storage"),
    "a persistent id with a path": (
        assembled(Reference("storage", torch.FloatStorage, "../../x", "cpu", 1))[2:-1],
        "refers to something that is no storage",
    ),
    "out-of-band buffers": (b"\x97", "uses NEXT_BUFFER"),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_way_to_call_or_to_import_is_refused_by_name(tmp_path, name):
    content, message = CALLS[name]
    write_pickle(tmp_path / "model.pt", b"\x80\x04" + content + b".")
    with pytest.raises(DataError, match=message):
        restricted.load(tmp_path / "model.pt")


def test_a_pickle_in_a_pickle_stays_bytes(tmp_path):
    canary = tmp_path / "canary"
    inner = pickle.dumps(Malicious(os.system, f"touch {canary}"))
    write_pickle(tmp_path / "model.pt", pickle.dumps({"inner": inner}, protocol=4))
    assert restricted.load(tmp_path / "model.pt") == {"inner": inner}
    assert not canary.exists()


def doubled(levels, leaf=b"N"):
    """The pickle of a tuple that has itself twice at every level: a few bytes for 2 ** levels values."""
    return leaf + b"q\x00h\x00\x86" * levels


DEEP_KEY = b"}" + b")" + b"\x85" * 40_000 + b"Ns"  # its hash would take all of Python's stack
LONGEST = 1.0  # seconds until a hostile file is refused; those here would take many more, or all memory
DAMAGED = {
    "a deep tuple as a key": (DEEP_KEY, "key of a dictionary is a tuple"),
    "a set": (b"\x8f(" + b"\x90", "uses ADDITEMS"),
    "an empty stack": (b"R", "is damaged"),
    "a mark too few": (b"t", "there is no mark"),
    "a tuple of too few": (b"N\x87", "is damaged"),
    "across a mark": (b"N(\x85", "is damaged"),
    "an unknown memo": (b"h\x05", "is damaged"),
    "an entry of a number": (b"K\x01NNs", "a dict is expected"),
    "a key that collides": (b"}\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x1fNs", "key of a dictionary is a int"),
    "a call of a number": (b"K\x01)R", "is damaged"),
    "a module of shared tuples": (doubled(26) + b"\x8c\x01x\x93", "a name is no text"),
    "a name of shared tuples": (b"\x8c\x01x" + doubled(26) + b"\x93", "a name is no text"),
    "a storage of a type of shared tuples": (
        b"(\x8c\x07storage" + doubled(30) + b"\x8c\x010\x8c\x03cpuK\x04tQ",
        "refers to something that is no storage",
    ),
    "endless copies": (
        b"ccollections\nOrderedDict\nq\x01" + b"(" + b"K\x01K\x02\x86" * 500 + b"lq\x00" + b"h\x01h\x00\x85R" * 2000,
        "takes more than",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_pickles_that_take_memory_time_or_the_stack_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(restricted, "MOST_STEPS", 100_000)
    content, message = DAMAGED[name]
    write_pickle(tmp_path / "model.pt", b"\x80\x04" + content + b".")
    start = time.process_time()
    with pytest.raises((CorruptError, DataError), match=message):
        restricted.load(tmp_path / "model.pt")
    assert time.process_time() - start < LONGEST


def test_keys_of_shared_tuples_in_files_before_torch_1_6_are_refused(tmp_path):
    machine = pickle.dumps({"little_endian": True}, protocol=2)
    parts = [restricted.LEGACY, pickle.dumps(1001, protocol=2), machine, pickle.dumps({}, protocol=2)]
    (tmp_path / "model.pt").write_bytes(b"".join(parts) + b"\x80\x02]" + doubled(26) + b"a.")
    start = time.process_time()
    with pytest.raises(CorruptError, match="its list of storages does not fit"):
        restricted.load(tmp_path / "model.pt")
    assert time.process_time() - start < LONGEST


TOOLKITS = {"joeynmt": "best.ckpt", "opennmt": "model_step_5.pt", "fairseq": "checkpoint_best.pt"}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("toolkit", TOOLKITS)
def test_no_import_runs_anything(tmp_path, toolkit, legacy):
    canary, folder = tmp_path / "canary", tmp_path / "model"
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps({"model": {}, "data": {}}))
    file = folder / TOOLKITS[toolkit]
    content = {"model": Malicious(os.system, f"touch {canary}"), "vocab": {}, "generator": {}, "opt": {}}
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(DataError, match=r"names 'posix\.system', which could run code.*Nothing was run"):
        IMPORTS[toolkit](file if toolkit == "opennmt" else folder, "mine", tmp_path / "runs")
    assert not canary.exists()
    assert not (tmp_path / "runs").exists()
    torch.load(file, weights_only=False)  # the canary works
    assert canary.exists()


@pytest.mark.parametrize("legacy", [False, True])
def test_plain_data_is_read_as_torch_reads_it(tmp_path, legacy):
    wide = torch.arange(60.0).reshape(3, 4, 5)
    content = {
        "model": collections.OrderedDict(a=wide, b=wide[:, 1:, ::2], c=nn.Parameter(torch.randn(2, 3))),
        "opt": argparse.Namespace(layers=2, rate=0.5, names=["x", "y"], nothing=None, yes=True),
        "numbers": (1, -2, 2**70, {"deep": [[]]}),
        "half": torch.ones(3, dtype=torch.float16),
        "empty": torch.empty(0, 4),
    }
    content["transforms"] = {"one"}
    torch.save(content, tmp_path / "model.pt", _use_new_zipfile_serialization=not legacy)
    read = restricted.load(tmp_path / "model.pt")
    for name, tensor in content["model"].items():
        assert torch.equal(read["model"][name], tensor)
    assert read["opt"] == vars(content["opt"])
    assert read["numbers"] == content["numbers"]
    assert torch.equal(read["half"], content["half"])
    assert read["transforms"] == ["one"]
    assert read["empty"].shape == (0, 4)


def test_damaged_checkpoints_get_a_sentence(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"no zip")
    with pytest.raises(DataError, match="cannot be read as a checkpoint of torch"):
        restricted.load(path)
    write_pickle(path, pickle.dumps([1, 2], protocol=2)[:-3])
    with pytest.raises(CorruptError, match="is damaged"):
        restricted.load(path)
    torch.save({"a": torch.ones(5)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member[:-4] if name.endswith("data/0") else member)
    with pytest.raises(CorruptError, match="the storage 0 has 16 bytes"):
        restricted.load(path)


def test_tricks_of_archives_are_refused(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"a": torch.ones(500)}, path)

    def refused(change, message, **options):
        with zipfile.ZipFile(path) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
        file = tmp_path / "changed.pt"
        with warnings.catch_warnings(), zipfile.ZipFile(file, "w", **options) as archive:
            warnings.simplefilter("ignore")  # two members of one name
            for name, content in change(members):
                archive.writestr(name, content)
        with pytest.raises((DataError, CorruptError), match=message):
            restricted.load(file)

    refused(lambda members: [*members, members[0]], "two members of one name")
    refused(lambda members: members, "it is compressed", compression=zipfile.ZIP_DEFLATED)
    refused(lambda members: [(f"x/{name}", content) for name, content in members], r"no single data\.pkl")
    refused(lambda members: [*members, ("b/data.pkl", b"N.")], r"no single data\.pkl")
    refused(lambda members: [(n, b"big" if "byteorder" in n else c) for n, c in members], "big-endian")
    refused(lambda members: [part for part in members if "data/0" not in part[0]], "data/0")
    large = ("model/data.pkl", b"N" * (restricted.MOST_PICKLE + 1))
    refused(lambda members: [large], r"data\.pkl has 67,108,865 bytes")


def test_members_that_overlap_are_refused(tmp_path):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"N." + b"x" * 10_000)
        for number in range(20):  # names for the bytes of the first member
            copy = zipfile.ZipInfo(f"a/data/{number}")
            copy.file_size = copy.compress_size = 10_002
            copy.header_offset = copy.CRC = 0
            archive.filelist.append(copy)
    with pytest.raises(DataError, match="its members are larger than the file"):
        restricted.load(path)


def test_a_directory_that_is_too_large_is_refused(tmp_path, monkeypatch):
    torch.save({"a": torch.ones(3)}, tmp_path / "model.pt")
    monkeypatch.setattr(restricted, "MOST_PICKLE", 200)
    with pytest.raises(DataError, match="has a directory of"):
        restricted.load(tmp_path / "model.pt")


FLOATS = (torch.FloatStorage, "0", "cpu", 4)
VIEWS = {
    "behind the end": ((2, (3,), (1,)), "lies outside its storage"),
    "a wide stride": ((0, (2,), (4,)), "lies outside its storage"),
    "larger than its storage": ((0, (1_000_000_000_000,), (0,)), "lies outside its storage"),
    "many axes": ((0, (2,) * 200, (0,) * 200), "more than 64 axes"),
    "huge numbers": ((0, (2**100_000,), (0,)), "are whole numbers"),
    "a negative offset": ((-1, (2,), (1,)), "are whole numbers"),
    "a negative size": ((0, (-2, -2), (1, 1)), "are whole numbers"),
    "a negative stride": ((3, (2,), (-1,)), "are whole numbers"),
    "no numbers": ((0.0, (2,), (1,)), "are whole numbers"),
    "other axes": ((0, (2, 2), (1,)), "is damaged"),
}


def tensor_pickle(storage, offset, size, stride):
    """A pickle of one tensor."""
    name = b"ctorch._utils\n_rebuild_tensor_v2\n"
    return assembled(name, b"(", Reference("storage", *storage), offset, size, stride, b"\x89NtR")


@pytest.mark.parametrize("name", VIEWS)
def test_tensors_outside_their_storage_are_refused(tmp_path, name):
    view, message = VIEWS[name]
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("a/data.pkl", tensor_pickle(FLOATS, *view))
        archive.writestr("a/data/0", torch.arange(4.0).numpy().tobytes())
    with pytest.raises(CorruptError, match=message):
        restricted.load(tmp_path / "model.pt")


def test_a_tensor_that_fits_is_read_and_its_storage_has_one_type(tmp_path):
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", tensor_pickle(FLOATS, 1, (3,), (1,)))
        archive.writestr("a/data/0", torch.arange(4.0).numpy().tobytes())
    assert restricted.load(path).tolist() == [1, 2, 3]
    one = tensor_pickle(FLOATS, 0, (2,), (1,))[2:-1]
    for other in ((torch.IntStorage, "0", "cpu", 4), (torch.HalfStorage, "0", "cpu", 8)):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/data.pkl", b"\x80\x02" + one + tensor_pickle(other, 0, (2,), (1,))[2:-1] + b"\x86.")
            archive.writestr("a/data/0", torch.arange(4.0).numpy().tobytes())
        with pytest.raises(CorruptError, match="the storage 0 has two types or sizes"):
            restricted.load(path)


MANY = {  # tensors that share their arguments: the size of one, more arguments, how many there are
    "views of one storage": (1000, b"", 10_000, "views of the same numbers, too many times"),
    "long arguments": (1, b"N" * 200_000, 20_000, "uses POP"),
}


@pytest.mark.parametrize("name", MANY)
def test_many_tensors_that_share_their_arguments_take_little_time(tmp_path, name):
    size, more, count, message = MANY[name]
    storage = Reference("storage", torch.FloatStorage, "0", "cpu", 1000)
    arguments = assembled(b"(", storage, 0, (size,), (1,), more)[2:-1] + b"tq\xff"
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\nq\xfe"
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + arguments + rebuild + b"h\xfeh\xffR" * count + b"0.")
        archive.writestr("a/data/0", torch.arange(1000.0).numpy().tobytes())
    start = time.process_time()
    with pytest.raises(DataError, match=message):
        restricted.load(tmp_path / "model.pt")
    assert time.process_time() - start < LONGEST


def test_files_before_torch_1_6_are_bounded(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"a": torch.arange(5.0)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    path.write_bytes(content[:-4])
    with pytest.raises(CorruptError, match=r"the storage \d+ has 16 bytes"):
        restricted.load(path)
    path.write_bytes(content.replace(b"K\x05N", b"\x8a\x05\x00\x00\x00\x00\x7fN"))
    with pytest.raises(CorruptError, match="its storages are larger than the file"):
        restricted.load(path)


def test_settings_that_merge_without_end_are_refused(tmp_path):
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]  # 10^11 entries
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"is not valid YAML: .*constructor for the tag"):
        IMPORTS["joeynmt"](tmp_path, "mine", tmp_path / "runs")


def test_settings_of_shared_lists_are_refused_in_time(tmp_path):
    lines = ["a0: &a0 [x]", "b0: &b0 [x]"]
    lines += [f"{name}{n}: &{name}{n} [*{name}{n - 1}, *{name}{n - 1}]" for name in "ab" for n in range(1, 30)]
    part = "type: transformer, layer_norm: post, embeddings: {scale: true}, hidden_size: 6, ff_size: 6, num_layers: 0"
    lines.append(f"model: {{encoder: {{{part}, num_heads: *a29}}, decoder: {{{part}, num_heads: *b29}}}}\ndata: {{}}")
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    torch.save({"model_state": {}}, tmp_path / "best.ckpt")
    start = time.process_time()
    with pytest.raises(DataError, match="JoeyNMT's setting num_heads is a list, but regard needs a int"):
        IMPORTS["joeynmt"](tmp_path, "mine", tmp_path / "runs")
    assert time.process_time() - start < LONGEST


@pytest.mark.parametrize("value", [torch.zeros(()), [[]], (0,), {}])
def test_a_setting_is_a_scalar_or_a_list_of_scalars(tmp_path, value):
    options = Options(tmp_path, "JoeyNMT", {"alpha": value})
    with pytest.raises(DataError, match=f"alpha = a {type(value).__name__}, only 0"):
        options.only("alpha", 0, [[]], (0,), {})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1" + ":00" * 300_000, "a number has more than 1,000 letters"),  # base 60
        ("1" + ":00" * 200_000 + ".5", "a number has more than 1,000 letters"),
        ("1" + ":00" * 200 + ".5", "too large"),
        ("!!timestamp now", "is not valid YAML"),
        ("!!bool perhaps", "perhaps"),
        ("!!int ''", "is not valid YAML"),
    ],
)
def test_values_that_yaml_cannot_read_are_refused_in_time(tmp_path, value, message):
    start = time.process_time()
    with pytest.raises(DataError, match=message):
        parse_yaml(f"x: {value}", tmp_path, "JoeyNMT")
    assert time.process_time() - start < LONGEST


def test_the_header_of_an_array_that_is_nested_too_deeply_is_refused(tmp_path):
    header = b"-" * 9000 + b"1\n"
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises((CorruptError, DataError), match=r"model\.npz"):
        restricted.load_npz(tmp_path / "model.npz")


# ---- JoeyNMT


def embeddings(width, scale):
    return {"embedding_dim": width, "scale": scale, "dropout": 0.1}


def write_joey(folder, model, state):
    """A model directory with the names and the structure of JoeyNMT's."""
    folder.mkdir()
    special = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}
    (folder / "config.yaml").write_text(json.dumps({"data": {"special_symbols": special}, "model": model}))
    (folder / "src_vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "trg_vocab.txt").write_text("\n".join(OTHERS) + "\n")
    torch.save({"model_state": state, "optimizer_state": {}, "stats_state": {"steps": 5}}, folder / "best.ckpt")
    return folder


def recurrent_model(cell, dim=6, hidden=4, width=5):
    encoder = {"type": "recurrent", "rnn_type": cell, "embeddings": embeddings(width, False), "hidden_size": hidden}
    encoder |= {"bidirectional": True, "num_layers": 1}
    decoder = {"type": "recurrent", "rnn_type": cell, "embeddings": embeddings(width, False), "hidden_size": dim}
    decoder |= {"num_layers": 1, "input_feeding": True, "init_hidden": "bridge", "attention": "bahdanau"}
    kind = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
    parts = {
        "src_embed.lut": nn.Embedding(len(WORDS), width),
        "trg_embed.lut": nn.Embedding(len(OTHERS), width),
        "encoder.rnn": kind(width, hidden, batch_first=True, bidirectional=True),
        "decoder.rnn": kind(width + dim, dim, batch_first=True),
        "decoder.att_vector_layer": nn.Linear(dim + 2 * hidden, dim),
        "decoder.output_layer": nn.Linear(dim, len(OTHERS), bias=False),
        "decoder.attention.key_layer": nn.Linear(2 * hidden, dim, bias=False),
        "decoder.attention.query_layer": nn.Linear(dim, dim, bias=False),
        "decoder.attention.energy_layer": nn.Linear(dim, 1, bias=False),
        "decoder.bridge_layer": nn.Linear(2 * hidden, dim),
    }
    return {"encoder": encoder, "decoder": decoder}, parts


@pytest.mark.parametrize("start", ["bridge", "zeros", "zero"])  # JoeyNMT's documentation has both
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_recurrent_model_of_joeynmt_computes_its_equations(tmp_path, cell, start):
    torch.manual_seed(1)
    config, parts = recurrent_model(cell)
    config["decoder"]["init_hidden"] = start
    bridge = parts["decoder.bridge_layer"] if start == "bridge" else parts.pop("decoder.bridge_layer")
    state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    predictor = regard.load(import_joey(write_joey(tmp_path / "joey", config, state), tmp_path / "runs"))
    source, target = torch.tensor([[4, 6, 5, 3]]), [2, 5, 7]  # ids of JoeyNMT
    with torch.no_grad():
        states, last = parts["encoder.rnn"](parts["src_embed.lut"](source))
        last = last[0] if cell == "lstm" else last
        first = torch.tanh(bridge(torch.cat([last[0], last[1]], dim=-1))).unsqueeze(0) * (start == "bridge")
        hidden, fed, logits = (first, first) if cell == "lstm" else first, torch.zeros(1, 1, 6), []
        for token in target:
            word = parts["trg_embed.lut"](torch.tensor([[token]]))
            query, hidden = parts["decoder.rnn"](torch.cat([word, fed], dim=-1), hidden)
            keys, asked = (parts[f"decoder.attention.{part}_layer"] for part in ("key", "query"))
            scores = parts["decoder.attention.energy_layer"](torch.tanh(asked(query) + keys(states)))
            context = scores.transpose(1, 2).softmax(-1) @ states
            fed = torch.tanh(parts["decoder.att_vector_layer"](torch.cat([query, context], dim=-1)))
            logits.append(parts["decoder.output_layer"](fed)[0, 0])
        ours = predictor.model.read(Padded(source, torch.ones_like(source, dtype=torch.bool)))
        step = predictor.model.decoder(torch.tensor([[BEGIN, 5, 7]]), ours)
    swapped = torch.stack(logits)[:, [1, 0, 2, 3, 4, 5, 6, 7]]  # padding comes first in regard
    assert (step.logits[0] - swapped).abs().max() < 1e-5
    assert predictor.predict(["one three"])[0].map is not None


SITES = {"encoder": {"self": "src_src_att"}, "decoder": {"self": "trg_trg_att", "cross": "src_trg_att"}}
NORM_NAMES = {"encoder": {"self": "layer_norm"}, "decoder": {"self": "x_layer_norm", "cross": "dec_layer_norm"}}
DEPTHS, DIM, INNER = {"encoder": 1, "decoder": 2}, 8, 10


def transformer_model(norm="pre", tied=True, **changes):
    """The settings of a small Transformer, which `changes` are for both sides, and random weights."""
    part = {"type": "transformer", "num_heads": 2, "hidden_size": DIM, "ff_size": INNER, "layer_norm": norm}
    part |= {"embeddings": embeddings(DIM, True)} | changes
    model = {side: part | {"num_layers": depth} for side, depth in DEPTHS.items()} | {"tied_softmax": tied}
    shapes = {}
    for side, depth in DEPTHS.items():
        for number in range(depth):
            start = f"{side}.layers.{number}"
            for site in SITES[side].values():
                shapes |= {f"{start}.{site}.{name}_layer": (DIM, DIM) for name in ("q", "k", "v", "output")}
            shapes |= {f"{start}.{name}": (DIM,) for name in [*NORM_NAMES[side].values(), "feed_forward.layer_norm"]}
            feed = f"{start}.feed_forward.pwff_layer"
            shapes |= {f"{feed}.0": (INNER, DIM), f"{feed}.3": (DIM, INNER)}
        if norm == "pre":
            shapes[f"{side}.layer_norm"] = (DIM,)
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[:1]) for name, shape in shapes.items()}
    state |= {"src_embed.lut.weight": torch.randn(len(WORDS), DIM)}
    state |= {"trg_embed.lut.weight": torch.randn(len(OTHERS), DIM)}
    state["decoder.output_layer.weight"] = state["trg_embed.lut.weight"] if tied else torch.randn(len(OTHERS), DIM)
    return model, state


def joey_logits(state, source, target, *, pre, heads, scale, activation):
    """The logits of JoeyNMT's equations, in float64: after the first word of `target`, and after each other one."""
    exact = {name: tensor.double() for name, tensor in state.items()}

    def affine(name):
        return exact[f"{name}.weight"], exact[f"{name}.bias"]

    def run(side, embedding, words, vocabulary, memory=None):
        vectors = exact[embedding][[vocabulary.index(word) for word in words]] * (DIM**0.5 if scale else 1)
        for place in range(len(words)):
            for i in range(0, DIM, 2):
                angle = place / 10000 ** (i / DIM)
                vectors[place, i : i + 2] += torch.tensor([math.sin(angle), math.cos(angle)], dtype=torch.float64)
        layers = []
        for start in (f"{side}.layers.{number}" for number in range(DEPTHS[side])):
            feed = f"{start}.feed_forward"
            parts = {"inner": affine(f"{feed}.pwff_layer.0"), "outer": affine(f"{feed}.pwff_layer.3")}
            parts["feed_norm"] = affine(f"{feed}.layer_norm")
            for name, site in SITES[side].items():
                parts[name] = [affine(f"{start}.{site}.{part}_layer") for part in ("q", "k", "v", "output")]
                parts[f"{name}_norm"] = affine(f"{start}.{NORM_NAMES[side][name]}")
            layers.append(parts)
        how = {"heads": heads[side], "pre": pre, "eps": 1e-6, "activation": activation}
        states = reference.stack(layers, vectors, memory, **how)
        return reference.norm(affine(f"{side}.layer_norm"), states, 1e-6) if pre else states

    memory = run("encoder", "src_embed.lut.weight", [*source, "</s>"], WORDS)
    states = run("decoder", "trg_embed.lut.weight", ["<s>", *target], OTHERS, memory)
    return states @ exact["decoder.output_layer.weight"].T


def gelu(inner):
    return inner * (1 + torch.erf(inner / 2**0.5)) / 2


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    ("scale", "heads", "activation"),
    [(True, (2, 2), "relu"), (False, (4, 2), "gelu"), (None, (None, None), "swish")],
)
def test_a_transformer_of_joeynmt_computes_its_equations(tmp_path, norm, scale, heads, activation):
    """None stands for a setting that is missing: JoeyNMT then scales no embedding, and has 4 and 8 heads."""
    torch.manual_seed(2)
    model, state = transformer_model(norm, tied=scale is True, activation=activation)
    for part, count in zip((model["encoder"], model["decoder"]), heads, strict=True):
        part |= {"num_heads": count, "embeddings": embeddings(DIM, scale)}
        if scale is None:
            del part["num_heads"], part["embeddings"]["scale"]
    if scale is None and norm == "post":
        del model["decoder"]["layer_norm"]
    run = import_joey(write_joey(tmp_path / "joey", model, state), tmp_path / "runs")
    source, target = ["three", "one", "one"], ["dos", "y"]
    sizes = {side: count or default for side, count, default in zip(DEPTHS, heads, (4, 8), strict=True)}
    how = {"pre": norm == "pre", "heads": sizes, "scale": scale is True}
    functions = {"relu": torch.relu, "gelu": gelu, "swish": lambda inner: inner * inner.sigmoid()}
    expected = joey_logits(state, source, target, **how, activation=functions[activation])
    reference.assert_equal(reference.regard_logits(run, " ".join(source), " ".join(target)), expected, OTHERS)


@pytest.mark.parametrize(
    ("side", "change", "message"),
    [
        ("encoder", {"layer_norm": None}, r"the encoder has no layer_norm, which versions of JoeyNMT read differently"),
        ("decoder", {"layer_norm": "post"}, "encoder and decoder differ in layer_norm"),
        ("decoder", {"layer_norm": None}, "encoder and decoder differ in layer_norm"),
        ("decoder", {"activation": "gelu"}, "encoder and decoder differ in activation"),
        ("encoder", {"embeddings": {"embedding_dim": DIM}}, "encoder and decoder differ in embeddings.scale"),
        ("decoder", {"alpha": 0.5}, "no counterpart of JoeyNMT's alpha = 0.5"),
        ("decoder", {"num_layers": None}, "has no tensor decoder.layers.2"),  # 4 of them
    ],
)
def test_what_regard_cannot_express_of_a_transformer_is_refused(tmp_path, side, change, message):
    model, state = transformer_model()
    model[side] |= change
    model[side] = {key: value for key, value in model[side].items() if value is not None}
    with pytest.raises(DataError, match=message):
        import_joey(write_joey(tmp_path / "joey", model, state), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_shared_embedding_of_joeynmt_has_the_scale_of_the_encoder(tmp_path):
    torch.manual_seed(1)
    model, state = transformer_model()
    model |= {"tied_embeddings": True}
    model["decoder"]["embeddings"] = embeddings(DIM, False)  # JoeyNMT does not read it
    state["src_embed.lut.weight"] = state["trg_embed.lut.weight"]
    folder = write_joey(tmp_path / "joey", model, state)
    (folder / "src_vocab.txt").write_text("\n".join(OTHERS) + "\n")
    assert import_joey(folder, tmp_path / "runs").recipe().model.embedding_scaled


def test_a_transformer_of_joeynmt_is_a_run_like_others(tmp_path):
    torch.manual_seed(1)
    run = import_joey(write_joey(tmp_path / "joey", *transformer_model()), tmp_path / "runs")
    predictor = regard.load(run)
    assert predictor.predict(["two one"], beam=2)[0].map is not None
    text = run.read(CARD).decode()
    assert text.startswith("# joey\n")
    assert "It has no recorded scores." in text
    assert "It was trained elsewhere, and imported by regard" in text
    (tmp_path / "pairs.tsv").write_text("one\tuno\ntwo\tdos\n")
    compared = regard.compare(run, data=[str(tmp_path / "pairs.tsv")], metric="exact_match", quiet=True)
    assert compared.entries[0].tokens_per_second == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"init_hidden": "last"}, "no counterpart of JoeyNMT's init_hidden = last"),
        ({"rnn_type": "sru"}, "rnn_type = sru"),
        ({"type": "transformer"}, "recurrent encoder with a transformer decoder"),
    ],
)
def test_what_regard_cannot_express_is_refused_with_a_sentence(tmp_path, change, message):
    config, parts = recurrent_model("gru")
    config["decoder"] |= change
    state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    with pytest.raises(DataError, match=message):
        import_joey(write_joey(tmp_path / "joey", config, state), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


# ---- the command


def test_the_command_recognises_a_model_by_its_files(tmp_path):
    config, parts = recurrent_model("gru")
    state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    folder = write_joey(tmp_path / "joey", config, state)
    command = shared_commands()
    done = command("import", folder, folder=tmp_path, limit=60)
    assert done.out.decode() == "runs/joey\n", done.error
    assert "by its files, this is a model of joeynmt" in done.error
    assert "next: regard predict runs/joey" in done.error
    predicted = command("predict", "runs/joey", "--text", "one three", folder=tmp_path, limit=60)
    assert predicted.code == 0
    assert "not finished" not in predicted.error
    (folder / "mine_step_10.pt").touch()
    refused = command("import", folder, folder=tmp_path, limit=60)
    assert refused.code == 2
    assert "add --from joeynmt or --from opennmt" in refused.error


def test_the_help_names_the_toolkits_of_the_table():
    text = " ".join(shared_commands()("import", "--help").out.decode().replace("│", " ").split())
    assert f"{', '.join(IMPORTS)}." in text
    assert list(MARKS) == list(IMPORTS)


@pytest.mark.parametrize("toolkit", IMPORTS)
def test_a_folder_without_a_model_is_refused(tmp_path, toolkit):
    with pytest.raises(DataError, match=str(tmp_path)):
        IMPORTS[toolkit](tmp_path, "mine", tmp_path / "runs")
    with pytest.raises(DataError, match="nothing"):
        IMPORTS[toolkit](tmp_path / "nothing", "mine", tmp_path / "runs")
    assert recognised(tmp_path) == "hugging_face"
