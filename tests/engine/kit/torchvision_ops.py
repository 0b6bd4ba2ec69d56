"""Lets a CUDA build of torchvision be imported beside a CPU torch: declares the two operators that it registers for."""

import importlib.abc
import sys


class _DeclareBeforeImport(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            sys._torchvision_ops = self  # the declaration lives as long as the library object
        return None


sys.meta_path.insert(0, _DeclareBeforeImport())
