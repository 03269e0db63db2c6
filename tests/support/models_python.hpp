// models_python: the networks as PyTorch has them, for scripts of tests: make(name, classes, stem) -> module.
#pragma once

namespace lockstep::test {

inline constexpr const char* python_models = R"(
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F, torchvision

class Block(nn.Module):                                  # option A shortcut, channels padded half before and half after
    def __init__(s, i, o, stride):
        super().__init__()
        s.conv1, s.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        s.conv2, s.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        s.stride, s.pad = stride, (o - i) // 2
    def forward(s, x):
        y = s.bn2(s.conv2(F.relu(s.bn1(s.conv1(x)))))
        return F.relu(y + F.pad(x[:, :, ::s.stride, ::s.stride], (0, 0, 0, 0, s.pad, s.pad)))

class CifarResNet(nn.Module):
    def __init__(s, depth, classes):
        super().__init__()
        s.conv1, s.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        n, i = (depth - 2) // 6, 16
        for k, o in enumerate((16, 32, 64)):
            blocks = []
            for b in range(n): blocks.append(Block(i, o, 2 if k > 0 and b == 0 else 1)); i = o
            setattr(s, "layer%d" % (k + 1), nn.Sequential(*blocks))
        s.fc = nn.Linear(64, classes)
        for m in s.modules():
            if isinstance(m, nn.Conv2d): nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    def forward(s, x):
        x = s.layer3(s.layer2(s.layer1(F.relu(s.bn1(s.conv1(x))))))
        return s.fc(x.mean((2, 3)))

class LeNet(nn.Module):
    def __init__(s, classes):
        super().__init__()
        s.conv1, s.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        s.fc1, s.fc2, s.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)
    def forward(s, x):
        x = F.max_pool2d(F.relu(s.conv1(x)), 2); x = F.max_pool2d(F.relu(s.conv2(x)), 2)
        return s.fc3(F.relu(s.fc2(F.relu(s.fc1(x.flatten(1))))))

def make(name, classes, stem="imagenet", **options):
    if name == "lenet": return LeNet(classes)
    if name in ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110"): return CifarResNet(int(name[6:]), classes)
    model = getattr(torchvision.models, name)(num_classes=classes, **options)
    if stem == "cifar":
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model
)";

}  // namespace lockstep::test
