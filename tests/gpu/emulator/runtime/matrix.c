// Matrices: mma.sync, ldmatrix, stmatrix, wgmma. Which lane holds what is from the fragment figures of the PTX ISA
// (Warp Level Matrix Instructions; Asynchronous Warpgroup Level Matrix Instructions); sums are taken in double.

static const int ELEMENT_BITS[] = {16, 16, 32, 8, 8, 8, 8};

static double element(u32 word, int place, int kind) {
    switch (kind) {
    case ELEMENT_F16: return f16_of((u16)(word >> 16 * place));
    case ELEMENT_BF16: return bf16_of((u16)(word >> 16 * place));
    case ELEMENT_TF32: return f32_of(word & 0xffffe000u);
    case ELEMENT_E4M3: return e4m3_of((u8)(word >> 8 * place));
    case ELEMENT_E5M2: return e5m2_of((u8)(word >> 8 * place));
    case ELEMENT_S8: return (s8)(word >> 8 * place);
    default: return (u8)(word >> 8 * place);
    }
}

// variant of MMA: kind of A | kind of B << 4 | registers of A << 8 | of B << 12 | accumulator << 16. in: A, B, C.
static void warp_mma(Thread *lanes) {
    u32 v = lanes[0].variant;
    int a_kind = v & 15, b_kind = v >> 4 & 15, a_regs = v >> 8 & 15, b_regs = v >> 12 & 15, accumulator = v >> 16 & 3;
    int per_word = 32 / ELEMENT_BITS[a_kind], k_size = b_regs * 4 * per_word;
    double a[16][64], b[64][8];
    for (int l = 0; l < 32; l++) {
        int group = l >> 2, q = l & 3;
        for (int i = 0; i < a_regs; i++)
            for (int j = 0; j < per_word; j++)
                a[group + 8 * (i & 1)][(q + (i >> 1) * 4) * per_word + j] = element((u32)lanes[l].in[i], j, a_kind);
        for (int i = 0; i < b_regs; i++)
            for (int j = 0; j < per_word; j++)
                b[(q + i * 4) * per_word + j][group] = element((u32)lanes[l].in[a_regs + i], j, b_kind);
    }
    for (int l = 0; l < 32; l++) {
        const u64 *c = lanes[l].in + a_regs + b_regs;
        u32 halves[4];
        for (int i = 0; i < 4; i++) {
            int row = (l >> 2) + 8 * (i >> 1), column = (l & 3) * 2 + (i & 1);
            double sum = 0;
            for (int k = 0; k < k_size; k++) sum += a[row][k] * b[k][column];
            if (accumulator == ACCUMULATE_F32) lanes[l].out[i] = bits_f32((float)(f32_of((u32)c[i]) + sum));
            else if (accumulator == ACCUMULATE_S32) lanes[l].out[i] = (u32)c[i] + (u32)(s32)sum;
            else halves[i] = bits_f16(f16_of((u16)(c[i >> 1] >> 16 * (i & 1))) + sum);
        }
        if (accumulator == ACCUMULATE_F16)
            for (int i = 0; i < 2; i++) lanes[l].out[i] = halves[2 * i] | halves[2 * i + 1] << 16;
    }
}

// variant of LDMATRIX and STMATRIX: matrices | transposed << 4. Lanes 8 m .. 8 m + 7 give the rows of matrix m.
static void warp_ldmatrix(Block *b, Thread *lanes) {
    int count = lanes[0].variant & 15, transposed = lanes[0].variant >> 4 & 1;
    u16 rows[4][8][8];
    for (int m = 0; m < count; m++)
        for (int r = 0; r < 8; r++) memcpy(rows[m][r], shared_at(b, &lanes[m * 8 + r], lanes[m * 8 + r].in[0], 16, READ), 16);
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < count; m++) {
            int r = l >> 2, c = (l & 3) * 2;
            u32 low = transposed ? rows[m][c][r] : rows[m][r][c], high = transposed ? rows[m][c + 1][r] : rows[m][r][c + 1];
            lanes[l].out[m] = low | high << 16;
        }
}

static void warp_stmatrix(Block *b, Thread *lanes) {
    int count = lanes[0].variant & 15, transposed = lanes[0].variant >> 4 & 1;
    u16 rows[4][8][8];
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < count; m++) {
            int r = l >> 2, c = (l & 3) * 2;
            u32 word = (u32)lanes[l].in[1 + m];
            *(transposed ? &rows[m][c][r] : &rows[m][r][c]) = (u16)word;
            *(transposed ? &rows[m][c + 1][r] : &rows[m][r][c + 1]) = (u16)(word >> 16);
        }
    for (int m = 0; m < count; m++)
        for (int r = 0; r < 8; r++) memcpy(shared_at(b, &lanes[m * 8 + r], lanes[m * 8 + r].in[0], 16, WRITE), rows[m][r], 16);
}

// One element of a K-major operand in shared memory (Matrix Descriptor Format: bits 0-13 start, 16-29 leading byte offset,
// 32-45 stride byte offset, each in units of 16 bytes; 62-63 swizzle: none, 128, 64, 32 bytes).
static double descriptor_element(Block *b, Thread *t, u64 descriptor, int row, int k, int kind) {
    static const u32 ROW_BYTES[] = {16, 128, 64, 32};
    u32 start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    u32 mode = descriptor >> 62, bytes = ELEMENT_BITS[kind] / 8, column = k * bytes, word = 0;
    u32 address = mode == 0 ? start + row / 8 * stride + column / 16 * leading + row % 8 * 16 + column % 16
                            : swizzled(start + row / 8 * stride + row % 8 * ROW_BYTES[mode] + column, ROW_BYTES[mode]);
    memcpy(&word, shared_at(b, t, address, bytes, READ), bytes);
    return element(word, 0, kind);
}

// variant of wgmma: N | kind of A << 10 | kind of B << 14 | A in registers << 18 | s32 sums << 19.
// in: A's descriptor or four registers; in[8]: whether to add to D; in[9]: B's descriptor. D is in accumulators.
static void warpgroup_mma(Block *b, Thread *threads) {
    u32 v = threads[0].variant;
    int n_size = v & 1023, a_kind = v >> 10 & 15, b_kind = v >> 14 & 15, in_registers = v >> 18 & 1, integers = v >> 19 & 1;
    int bits = ELEMENT_BITS[a_kind], per_word = 32 / bits, k_size = 256 / bits;
    static double a[64][32], bt[256][32];
    for (int i = 1; i < 128; i++)
        if (threads[i].in[9] != threads[0].in[9] || (!in_registers && threads[i].in[0] != threads[0].in[0]))
            fail(b, &threads[i], "a wgmma descriptor differs within the warpgroup", threads[i].in[9], 0);
    for (int n = 0; n < n_size; n++)
        for (int k = 0; k < k_size; k++) bt[n][k] = descriptor_element(b, threads, threads[0].in[9], n, k, b_kind);
    for (int i = 0; in_registers && i < 128; i++) {
        int l = i & 31, q = l & 3, row = (i >> 5) * 16 + (l >> 2);
        for (int r = 0; r < 4; r++)
            for (int j = 0; j < per_word; j++)
                a[row + 8 * (r & 1)][(q + (r >> 1) * 4) * per_word + j] = element((u32)threads[i].in[r], j, a_kind);
    }
    for (int m = 0; !in_registers && m < 64; m++)
        for (int k = 0; k < k_size; k++) a[m][k] = descriptor_element(b, threads, threads[0].in[0], m, k, a_kind);
    for (int i = 0; i < 128; i++)
        for (int x = 0; x < n_size / 2; x++) {
            int l = i & 31, row = (i >> 5) * 16 + (l >> 2) + 8 * (x >> 1 & 1), column = (x >> 2) * 8 + (l & 3) * 2 + (x & 1);
            u32 old = threads[i].in[8] ? (u32)threads[i].accumulators[x] : 0;
            double sum = 0;
            for (int k = 0; k < k_size; k++) sum += a[row][k] * bt[column][k];
            threads[i].accumulators[x] = integers ? old + (u32)(s32)sum : bits_f32((float)(f32_of(old) + sum));
        }
}

static int warpgroup_try(Block *b, u32 group) {
    if ((group + 1) * 128 > b->thread_count) return 0;
    Thread *threads = b->threads + group * 128;
    for (int i = 0; i < 128; i++)
        if (threads[i].state != AT_WGMMA || threads[i].resume != threads[0].resume) return 0;
    warpgroup_mma(b, threads);
    for (int i = 0; i < 128; i++) threads[i].state = RUNNABLE;
    return 1;
}
