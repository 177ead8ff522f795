"""Builds the native kernels: see trisect/ops/native."""

from setuptools import setup

setup()
