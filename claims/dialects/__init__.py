"""Every way a pod may request devices, each parsed into a `DeviceRequest`. Pure: no Django, no network, no clock.

A dialect is a module and a line of `registry`. Invariants:
- A pod that uses two dialects is refused; no pod, however malformed, raises.
- Written results are read back with the same devices and amounts.
"""
