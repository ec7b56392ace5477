"""`django.contrib.admin` with our site. Not in `gpuplane.apps`, where Django would take it for gpuplane's own."""

from django.contrib.admin.apps import AdminConfig


class Administration(AdminConfig):
    """Django's admin, signed in to by the one sign-in page."""

    default_site = "gpuplane.pages.admin_site.Site"
