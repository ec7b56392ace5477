"""The URLs of the main listener."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/", include("gpuplane.rest.urls")),
    path("", include("gpuplane.pages.urls")),
]

handler400 = "gpuplane.pages.errors.bad_request"
handler403 = "gpuplane.pages.errors.forbidden"
handler404 = "gpuplane.pages.errors.not_found"
handler500 = "gpuplane.pages.errors.broken"
