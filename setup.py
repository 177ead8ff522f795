"""Builds the native kernels: see trisect/native."""

from setuptools import setup

setup()
