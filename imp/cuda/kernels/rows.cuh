// Rows of activations, as kernels hand them on: float32 [tokens, stride], or the operand of a matrix product, whose columns
// from the last to the stride are zeros. Strides are multiples of 64 columns, so 4 neighbours are one load or store.
#pragma once
#include "prelude.cuh"

enum { AS_F32, AS_F16, AS_BF16 };  // `form`

// 4 columns of a row of `count`; zeros where there are none
DEVICE float4 read_four(const float* row, int column, int count) {
    if (column + 3 < count) return *(const float4*)(row + column);
    float4 v = {0.f, 0.f, 0.f, 0.f};
    if (column < count) v.x = row[column];
    if (column + 1 < count) v.y = row[column + 1];
    if (column + 2 < count) v.z = row[column + 2];
    return v;
}
DEVICE void write_four(void* out, int form, size_t at, float4 v) {
    if (form == AS_F32) *(float4*)((float*)out + at) = v;
    else if (form == AS_F16) *(uint2*)((u16*)out + at) = {F16::pair(v.x, v.y), F16::pair(v.z, v.w)};
    else *(uint2*)((u16*)out + at) = {BF16::pair(v.x, v.y), BF16::pair(v.z, v.w)};
}
DEVICE float4 times(float4 v, float f) { return {v.x * f, v.y * f, v.z * f, v.w * f}; }
DEVICE float4 times(float4 v, float4 w) { return {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w}; }
DEVICE float squares(float4 v) { return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w); }
