"""Layers and models as plain modules. They know no ranks.

A static model is a list of `Layer`s (`Model`), a dynamic one a list of `DynamicLayer`s (`DynamicModel`); both are
built by name with `build`, or by hand from the layers here. `FromPyG` makes a layer of a PyG convolution.
"""

from trisect.nn.base import Layer, Model, Normalisation, State, Temporal
from trisect.nn.conv.convolution import DropoutLayer, LinearLayer
from trisect.nn.conv.frompyg import FromPyG
from trisect.nn.conv.gat import GATLayer, GATv2Layer
from trisect.nn.conv.gcn import GCN2Layer, GCNLayer
from trisect.nn.conv.gin import GINELayer, GINLayer
from trisect.nn.conv.hetero import HeteroLayer
from trisect.nn.conv.hetero_linear import HeteroLinearLayer
from trisect.nn.conv.resgcn import ReadoutLayer, ResGCNLayer
from trisect.nn.conv.rgcn import RGCNLayer
from trisect.nn.conv.sage import SAGELayer
from trisect.nn.models.recipe import DynamicRecipe, Recipe
from trisect.nn.models.registry import NAMES, Option, build, options, recipe
from trisect.nn.norm import BatchNorm
from trisect.nn.temporal.dynamic import DynamicLayer, DynamicModel, SpatialTemporal
from trisect.nn.temporal.evolving import Evolving
from trisect.nn.temporal.mproduct import MProduct
from trisect.nn.temporal.recurrent import GRU, LSTM

__all__ = [
    "GRU",
    "LSTM",
    "NAMES",
    "BatchNorm",
    "DropoutLayer",
    "DynamicLayer",
    "DynamicModel",
    "DynamicRecipe",
    "Evolving",
    "FromPyG",
    "GATLayer",
    "GATv2Layer",
    "GCN2Layer",
    "GCNLayer",
    "GINELayer",
    "GINLayer",
    "HeteroLayer",
    "HeteroLinearLayer",
    "Layer",
    "LinearLayer",
    "MProduct",
    "Model",
    "Normalisation",
    "Option",
    "RGCNLayer",
    "ReadoutLayer",
    "Recipe",
    "ResGCNLayer",
    "SAGELayer",
    "SpatialTemporal",
    "State",
    "Temporal",
    "build",
    "options",
    "recipe",
]
