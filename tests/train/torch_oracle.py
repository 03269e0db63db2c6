"""PyTorch's answers for torch_*_test.cpp, in float64, as a stream of bytes on stdout that support/train_oracle.hpp reads.

torch_oracle.py REQUEST      REQUEST is JSON, see logits() and steps().
Arrays are f32 in PyTorch's layouts, in the order of named_parameters() and named_buffers(); images NHWC; labels i32; losses f64.
"""
import copy
import itertools
import json
import os
import pathlib
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from torch_models import make  # noqa: E402

OUT = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
os.dup2(2, 1)                                     # what a library prints must not land in the stream


def put(dtype, *tensors):
    for t in tensors:
        OUT.write(memoryview(torch.as_tensor(t).detach().to(dtype).contiguous().numpy().reshape(-1)).cast("B"))


def buffers_of(model):
    return [b for name, b in model.named_buffers() if not name.endswith("num_batches_tracked")]


@torch.no_grad()
def round_to_f32(tensors):
    for t in tensors:
        t.copy_(t.float())


def model_of(request):
    torch.manual_seed(request["seed"])
    options = {"dropout": 0.0} if request["name"] == "alexnet" else {}
    return make(request["name"], request["classes"], request["stem"], **options).double()


def batch_of(request, generator):
    """Images that a network can learn: a coarse pattern of the class, under noise.  f32 values in f64."""
    n, size, classes = request["batch"], request["size"], request["classes"]
    patterns = torch.randn(classes, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(0, classes, (n,), generator=generator)
    images = F.interpolate(patterns[labels], size=(size, size)) + 0.7 * torch.randn(n, 3, size, size, generator=generator)
    return images.double(), labels


@torch.no_grad()
def logits(request):
    """parameters, buffers, images, logits (f64).  Running statistics are a batch's, disturbed: neither trivial nor far from the data."""
    model, generator = model_of(request), torch.Generator().manual_seed(request["seed"])
    images, _ = batch_of(request, generator)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    last_of_block = [getattr(m, "bn3", m.bn2) for m in model.modules() if hasattr(m, "bn2")]
    for m in norms:
        m.momentum = 1
        m.weight.copy_(0.5 + torch.rand(m.weight.shape, generator=generator))
        m.bias.copy_(0.2 * torch.randn(m.bias.shape, generator=generator))
    for m in last_of_block:
        m.weight *= 0.2                           # as blocks of a trained network, they add little; else 50 amplify f32's rounding to 1e-4
    if norms:
        model.train()(images)
    for m in norms:
        m.running_mean += 0.1 * m.running_var.sqrt() * torch.randn(m.bias.shape, generator=generator)
        m.running_var *= 0.8 + 0.5 * torch.rand(m.bias.shape, generator=generator)
    round_to_f32(list(model.parameters()) + buffers_of(model))
    put(torch.float32, *model.parameters(), *buffers_of(model), images.permute(0, 2, 3, 1))
    put(torch.float64, model.eval()(images))


def optimizer_of(request, parameters):
    """parameters: (tensor to be optimized, whether it is a bias or a norm's)."""
    decay = request["weight_decay"]
    groups = [{"params": [p for p, is_vector in parameters if not is_vector]},
              {"params": [p for p, is_vector in parameters if is_vector], "weight_decay": decay if request["decay_all"] else 0}]
    if request["kind"] == "sgd":
        return torch.optim.SGD(groups, request["rate"], momentum=request["momentum"], weight_decay=decay)
    return torch.optim.AdamW(groups, request["rate"], weight_decay=decay)


def moment_names(request):
    return ["exp_avg", "exp_avg_sq"] if request["kind"] == "adamw" else ["momentum_buffer"] if request["momentum"] > 0 else []


class Truth:
    """The float64 run.  Its optimizer sees every parameter in pieces that fit a cache: AlexNet's are 450 MB each time over."""

    PIECE = 1 << 16

    def __init__(self, request):
        self.model, self.names = model_of(request), moment_names(request)
        self.parameters = list(self.model.parameters())
        round_to_f32(self.parameters)
        self.pieces = [[torch.nn.Parameter(v) for v in p.data.view(-1).split(self.PIECE)] for p in self.parameters]
        self.optimizer = optimizer_of(request, [(v, p.ndim == 1) for p, views in zip(self.parameters, self.pieces) for v in views])
        self.updates = 0
        self.f32 = {kind: [torch.zeros(p.shape) for p in self.parameters] for kind in ["weight"] + self.names}   # what the run holds, in f32
        for rounded, p in zip(self.f32["weight"], self.parameters):
            rounded.copy_(p.data)

    @torch.no_grad()
    def step(self, loss, is_teacher):
        """is_teacher: the run goes on with what f32 can hold, so that all who start from here start from the same bits."""
        for p in self.parameters:
            p.grad = None
        loss.backward()
        for p, views in zip(self.parameters, self.pieces):
            for view, grad in zip(views, p.grad.view(-1).split(self.PIECE)):
                view.grad = grad
        self.optimizer.step()
        self.updates += 1
        for kind, tensors in self.f32.items():
            for tensor, views in zip(tensors, self.pieces):
                for rounded, view in zip(tensor.view(-1).split(self.PIECE), views):
                    exact = view.data if kind == "weight" else self.optimizer.state[view][kind]
                    rounded.copy_(exact)
                    if is_teacher:
                        exact.copy_(rounded)
        if is_teacher:
            round_to_f32(buffers_of(self.model))

    def state(self):
        """In f32, one tensor at a time: weights, moments, buffers."""
        for tensors in self.f32.values():
            yield from tensors
        yield from (b.float() for b in buffers_of(self.model))


def rounded_step(request, model, truth, memory_format):
    """One step of PyTorch in the request's precision, by `model`, from the truth's state.  The loss; gradients, then tensors as Truth.state() has them."""
    device, precision, scale = request["device"], request["precision"], request["loss_scale"]
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    model.to(device=device, memory_format=memory_format).train()
    parameters = list(model.parameters())
    for p, rounded in zip(parameters, truth.f32["weight"]):
        p.data.copy_(rounded)
        p.grad = None
    for b, exact in zip(buffers_of(model), buffers_of(truth.model)):
        b.copy_(exact)
    optimizer = optimizer_of(request, [(p, p.ndim == 1) for p in parameters])
    for i, p in enumerate(parameters if truth.updates > 0 else []):     # before the first step PyTorch makes its own
        optimizer.state[p] = {name: truth.f32[name][i].to(device, copy=True) for name in truth.names}
        if request["kind"] == "adamw":
            optimizer.state[p]["step"] = torch.tensor(float(truth.updates))
    images, labels = truth.batch
    with torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = F.cross_entropy(model(images.float().to(device).contiguous(memory_format=memory_format)), labels.to(device), label_smoothing=request["smoothing"])
    (loss * scale).backward()
    for p in parameters:
        p.grad /= scale
    optimizer.step()
    tensors = ([p.grad for p in parameters] + [p.data for p in parameters] + [optimizer.state[p][name] for name in truth.names for p in parameters] +
               buffers_of(model))
    return float(loss), [t.detach().to("cpu", copy=True) for t in tensors]


def steps(request):
    """parameters, buffers; then for each step: images, labels, loss, gradients; weights, moments, buffers after it; the number of rounded steps taken from the same state (i32), and for each of them
    (f64) its loss and the L2 distance of each of those tensors from the truth.
    is_teacher: every step starts from f32 values; else the truth runs freely, in f64.
    f32_every: steps between two with steps in the request's precision beside them; 0: none."""
    truth, generator = Truth(request), torch.Generator().manual_seed(request["seed"])
    f32_model = copy.deepcopy(truth.model).float() if request["f32_every"] else None
    put(torch.float32, *truth.parameters, *buffers_of(truth.model))
    for step in range(request["steps"]):
        truth.batch = images, labels = batch_of(request, generator)
        put(torch.float32, images.permute(0, 2, 3, 1))
        put(torch.int32, labels)
        OUT.flush()
        is_measured = request["f32_every"] and step % request["f32_every"] == 0
        rounded = [rounded_step(request, f32_model, truth, layout) for layout in (torch.contiguous_format, torch.channels_last) if is_measured]
        loss = F.cross_entropy(truth.model.train()(images), labels, label_smoothing=request["smoothing"])
        truth.step(loss, request["is_teacher"])
        put(torch.float64, loss)
        distances = [[] for _ in rounded]
        for index, true in enumerate(itertools.chain((p.grad.float() for p in truth.parameters), truth.state())):
            put(torch.float32, true)
            for distance, (_, tensors) in zip(distances, rounded):
                distance.append(float(torch.linalg.vector_norm(tensors[index] - true, dtype=torch.float64)))
        put(torch.int32, [len(rounded)])
        for distance, (f32_loss, _) in zip(distances, rounded):
            put(torch.float64, [f32_loss] + distance)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = json.loads(sys.argv[1])
    {"logits": logits, "steps": steps}[asked["task"]](asked)
    OUT.flush()
