"""Every address of the main door, in one place."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/", include("gpuplane.rest.urls")),
]
