"""PyTorch's FSDP2 memory tracker for units of several modules.

`FSDPMemTracker` (PyTorch 2.14, torch/distributed/_tools/fsdp2_mem_tracker.py) replaces the hooks of `fully_shard([a, b])` by one pair a
module, so that the group reshards after its first module and reduces once a module. Here a group keeps the hooks of a group.
"""

from __future__ import annotations

from typing import Any, Iterator

from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPRefType, _SavedFSDPMethods
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_state import _register_group_forward_hooks


def _hook(state: Any, before: Any, after: Any) -> None:
    """Registers forward hooks as `FSDPState.init` does."""
    if len(state._modules) == 1:
        module = state._modules[0]
        state._pre_forward_hook_handle = module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        state._post_forward_hook_handle = module.register_forward_hook(after, prepend=False)
        return
    handle = _register_group_forward_hooks(
        state._modules, before, after, state._modules_to_run_forward, state._cast_output_dtype
    )
    state._pre_forward_hook_handle = state._post_forward_hook_handle = handle


class GroupMemTracker(FSDPMemTracker):
    """`FSDPMemTracker` that tells groups from modules."""

    def _states(self) -> Iterator[tuple[Any, Any]]:
        """Each state that owns parameters, with the first of its modules."""
        seen: set[int] = set()
        for module in self._root_mod.modules():
            if not isinstance(module, FSDPModule):
                continue
            state = module._get_fsdp_state()
            if state._fsdp_param_group and id(state) not in seen:
                seen.add(id(state))
                yield module, state

    def _instrument_fsdp_module(self) -> None:
        for module, state in self._states():
            group = state._fsdp_param_group
            self._instrument_fsdp_sharded_params_grads(group)
            state._pre_forward_hook_handle.remove()
            state._post_forward_hook_handle.remove()
            _hook(
                state,
                self._fsdp_state_pre_forward(module, state._pre_forward),
                self._fsdp_state_post_forward(module, state._post_forward),
            )
            self._fsdp_mod_to_saved_methods[module] = _SavedFSDPMethods(group.pre_backward, group.post_backward)
            group.pre_backward = self._fsdp_param_group_pre_backward(module, group.pre_backward)
            group.post_backward = self._fsdp_param_group_post_backward(module, group.post_backward)
        for buffer in self._root_mod.buffers():
            self._update_and_maybe_create_winfos(buffer, _FSDPRefType.BUFFER)

    def _deregister_module_and_optimizer_hooks(self) -> None:
        for module, saved in self._fsdp_mod_to_saved_methods.items():
            state = module._get_fsdp_state()
            state._pre_forward_hook_handle.remove()
            state._post_forward_hook_handle.remove()
            _hook(state, state._pre_forward, state._post_forward)
            state._fsdp_param_group.pre_backward = saved.pre_backward
            state._fsdp_param_group.post_backward = saved.post_backward
        self._fsdp_mod_to_saved_methods.clear()
        super()._deregister_module_and_optimizer_hooks()
