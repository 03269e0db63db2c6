"""The networks as PyTorch has them: make(name, classes, stem) -> module."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


class Block(nn.Module):
    """Option A shortcut, channels padded half before and half after."""

    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.stride, self.pad = stride, (o - i) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.pad, self.pad)))


class CifarResNet(nn.Module):
    def __init__(self, depth, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        n, i = (depth - 2) // 6, 16
        for k, o in enumerate((16, 32, 64)):
            blocks = []
            for b in range(n):
                blocks.append(Block(i, o, 2 if k > 0 and b == 0 else 1))
                i = o
            setattr(self, "layer%d" % (k + 1), nn.Sequential(*blocks))
        self.fc = nn.Linear(64, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(x.mean((2, 3)))


class LeNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


def make(name, classes, stem="imagenet", **options):
    if name == "lenet":
        return LeNet(classes)
    if name in ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110"):
        return CifarResNet(int(name[6:]), classes)
    model = getattr(torchvision.models, name)(num_classes=classes, **options)
    if stem == "cifar":
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model
