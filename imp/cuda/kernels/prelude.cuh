// What every kernel stands on: short names, conversions, warp sums, asynchronous copies, matrix instructions. No header of
// the toolkit is included: they take longer to parse than all kernels take to compile.
//
// Activations are 16-bit numbers of one of two kinds, F16 or BF16, chosen by -DACT=F16 or -DACT=BF16; sums are float32.
#pragma once

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
// a kernel that is launched with N threads, of which at least B blocks fit on a multiprocessor
#define KERNEL(N, B) extern "C" __global__ void __launch_bounds__(N, B)

constexpr float NEVER = -1e30f;  // a score that no key has; finite, so that differences are never NaN
constexpr float LOG2E = 1.4426950408889634f;

// -- 16-bit numbers ---------------------------------------------------------------------------------------------------

DEVICE float f16_value(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
DEVICE u16 f16_bits(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
DEVICE float bf16_value(u16 x) { return __uint_as_float((u32)x << 16); }
DEVICE u16 bf16_bits(float x) {
    u16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

// D[16, 8] += A[16, 16] B[16, 8], both of 16-bit numbers. Of lane l, with g = l / 4 and q = l % 4 (PTX ISA, mma.m16n8k16):
//   a[0], a[1]: columns 2q, 2q + 1 of rows g, g + 8;  a[2], a[3]: columns 2q + 8, 2q + 9 of the same rows
//   b0, b1: rows 2q, 2q + 1 and rows 2q + 8, 2q + 9 of column g
//   c[0], c[1]: columns 2q, 2q + 1 of row g;  c[2], c[3]: of row g + 8
struct F16 {
    static constexpr bool HALF = true;
    DEVICE float value(u16 x) { return f16_value(x); }
    DEVICE u16 bits(float x) { return f16_bits(x); }
    DEVICE u32 pair(float low, float high) {
        u32 y;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
        return y;
    }
    DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
struct BF16 {
    static constexpr bool HALF = false;
    DEVICE float value(u16 x) { return bf16_value(x); }
    DEVICE u16 bits(float x) { return bf16_bits(x); }
    DEVICE u32 pair(float low, float high) {
        u32 y;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
        return y;
    }
    DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
template <class T> DEVICE float low_of(u32 pair) { return T::value((u16)pair); }
template <class T> DEVICE float high_of(u32 pair) { return T::value((u16)(pair >> 16)); }

#ifdef ACT
typedef ACT Act;
#endif

// -- numbers of 8 and 4 bits ------------------------------------------------------------------------------------------

// Both go by way of a float16, whose exponent has more bits: what differs is a power of two. Exact, and without the
// instructions that sm_80 lacks. e4m3's two NaNs become 480: nothing here makes them.
DEVICE float e4m3_value(u32 code) { return f16_value((u16)((code & 0x7f) << 7 | (code & 0x80) << 8)) * 256.f; }
// of an e2m1 code in bits 0 to 3
DEVICE float e2m1_value(u32 code) { return f16_value((u16)((code & 7) << 9 | (code & 8) << 12)) * 16384.f; }

// -- arithmetic -------------------------------------------------------------------------------------------------------

DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// the instruction for tanh has only 11 bits
DEVICE float tanh_of(float x) { return 1.f - 2.f / (1.f + __expf(2.f * x)); }
DEVICE float capped(float x, float cap) { return cap * tanh_of(x / cap); }
DEVICE float quad_sum(float x) {  // over the 4 lanes that share a row of a fragment
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
DEVICE float warp_sum(float x) {
    UNROLL
    for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(~0u, x, step);
    return x;
}
DEVICE float warp_max(float x) {
    UNROLL
    for (int step = 16; step; step >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}
// The sum over a block of WARPS warps, for all its threads; `room` is WARPS floats of shared memory, used once.
template <int WARPS> DEVICE float block_sum(float x, float* room) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.f;
    UNROLL
    for (int warp = 0; warp < WARPS; warp++) x += room[warp];
    return x;
}

// -- memory -----------------------------------------------------------------------------------------------------------

// 16 bytes of weights: read once, so they need no place in the first cache
DEVICE uint4 load_once(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// 16 bytes from global to shared memory, or 16 zeros
DEVICE void copy_async(u32 target, const void* source, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(there ? 16 : 0)
                 : "memory");
}
DEVICE void store_shared(u32 target, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(target), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// four 8x8 matrices of 16-bit numbers, whose rows are at the addresses of lanes 0-7, 8-15, 16-23, 24-31
DEVICE void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
DEVICE void load_matrices_turned(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
