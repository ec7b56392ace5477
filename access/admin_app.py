"""`django.contrib.admin` with a site of ours. Named in Django's settings; apart from `access.apps`, where it would pass for the room."""

from django.contrib.admin.apps import AdminConfig


class Administration(AdminConfig):
    """Django's admin, signed in to by the one sign-in page."""

    default_site = "access.admin_site.Site"
