"""Stands in for DeepEP's ``Buffer`` within a node, over ``torch.distributed.all_to_all_single`` (gloo or NCCL).

It has the calls that SGLang's "normal" DeepEP dispatcher makes. As with DeepEP, a token goes once to every rank that
holds a slot of it, and never to its own rank. Pairs of token and slot are counted, those on the own rank apart, unless
``Buffer.counting`` is off: on a GPU counting would make every dispatch wait.
"""

import torch
import torch.distributed as dist

PAIRS = {"own": 0, "all": 0, "copies": 0, "tokens": 0}
"""Counted on this rank since it started; ``copies`` are rows sent to other ranks."""


class Config:
    def __init__(self, num_sms=20, *_args, **_kwargs):
        self.num_sms = num_sms

    def get_nvl_buffer_size_hint(self, *_args):
        return 0

    get_rdma_buffer_size_hint = get_nvl_buffer_size_hint


class _Event:
    event = None

    def current_stream_wait(self):
        """Collectives here have ended when they return."""


class Buffer:
    num_sms = 20
    low_latency_mode = False
    counting = True

    def __init__(self, group, num_nvl_bytes=0, num_rdma_bytes=0, **kwargs):
        if kwargs.get("low_latency_mode"):
            raise NotImplementedError("the stand-in has only DeepEP's normal mode")
        self.group, self.ranks, self.rank = group, group.size(), group.rank()

    @staticmethod
    def is_sm90_compiled():
        return None

    @staticmethod
    def capture():
        return _Event()

    @staticmethod
    def get_dispatch_config(_ranks):
        return Config()

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(self, topk_idx, num_experts, **_kwargs):
        """Return rows per rank, rows per slot and, per token, which ranks it goes to."""
        slots_per_rank = num_experts // self.ranks
        rank_TK = torch.where(topk_idx >= 0, topk_idx // slots_per_rank, self.ranks)
        goes_TR = torch.zeros(topk_idx.shape[0], self.ranks + 1, dtype=torch.bool, device=topk_idx.device)
        goes_TR.scatter_(1, rank_TK, True)
        goes_TR = goes_TR[:, : self.ranks].contiguous()
        slot_N = torch.where(topk_idx >= 0, topk_idx, num_experts).flatten()
        per_slot = torch.bincount(slot_N, minlength=num_experts + 1)[:num_experts]
        return goes_TR.sum(0).to(torch.int32), None, per_slot.to(torch.int32), goes_TR, _Event()

    def dispatch(
        self,
        x,
        topk_idx=None,
        topk_weights=None,
        num_tokens_per_rank=None,
        is_token_in_rank=None,
        num_tokens_per_expert=None,
        **_kwargs,
    ):
        slots = num_tokens_per_expert.shape[0] // self.ranks
        if self.counting:
            self._count(topk_idx, is_token_in_rank, slots)
        send_R = num_tokens_per_rank.to(torch.int64)
        received_R = torch.empty_like(send_R)
        dist.all_to_all_single(received_R, send_R, group=self.group)
        send, received = torch.stack([send_R, received_R]).tolist()  # waits for the device once, as DeepEP does
        token_of_row = is_token_in_rank.t().nonzero()[:, 1]  # by rank, then by token
        parts = list(token_of_row.split(send))
        own = parts[self.rank]
        far = torch.cat([part for rank, part in enumerate(parts) if rank != self.rank])
        sent = [0 if rank == self.rank else count for rank, count in enumerate(send)]
        got = [0 if rank == self.rank else count for rank, count in enumerate(received)]
        before = sum(got[: self.rank])

        def move(tensor):
            arrived = self._exchange(tensor[far], sent, got)
            return torch.cat([arrived[:before], tensor[own], arrived[before:]])

        rows, ids, weights = move(x), move(topk_idx), move(topk_weights)
        here = (ids >= self.rank * slots) & (ids < (self.rank + 1) * slots)
        ids = torch.where(here, ids - self.rank * slots, -1)
        weights = torch.where(here, weights, 0)
        per_slot = torch.bincount(torch.where(here, ids, slots).flatten(), minlength=slots + 1)[:slots].tolist()
        handle = (own, far, sent, got, before, x.shape[0])
        return rows, ids, weights, per_slot, handle, _Event()

    def combine(self, x, handle, **_kwargs):
        own, far, sent, got, before, tokens = handle
        back = self._exchange(torch.cat([x[:before], x[before + len(own) :]]), got, sent)
        out = torch.zeros(tokens, x.shape[1], dtype=torch.float32, device=x.device)
        out.index_add_(0, own, x[before : before + len(own)].float())
        out.index_add_(0, far, back.float())
        return out.to(x.dtype), None, _Event()

    def _exchange(self, tensor, send, receive):
        out = torch.empty((sum(receive), *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
        dist.all_to_all_single(out, tensor.contiguous(), receive, send, group=self.group)
        return out

    def _count(self, topk_idx, goes_TR, slots):
        valid = topk_idx >= 0
        PAIRS["all"] += int(valid.sum())
        PAIRS["own"] += int((valid & (topk_idx // slots == self.rank)).sum())
        PAIRS["copies"] += int(goes_TR.sum() - goes_TR[:, self.rank].sum())
        PAIRS["tokens"] += int(topk_idx.shape[0])
