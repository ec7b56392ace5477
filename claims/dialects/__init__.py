"""Every way a pod may ask for devices, each parsed into one `DeviceRequest`. Pure: no Django, no network, no clock."""
