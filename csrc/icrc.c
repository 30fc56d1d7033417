/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32 three ways: slicing by eight, PCLMULQDQ, and VPCLMULQDQ on 256-bit registers.
 *
 * The carry-less ways keep 128-bit remainders and move each over a distance of n bits by two
 * multiplications, with x^(n+32) and x^(n-32) mod P, bit-reflected and shifted left by one.
 * Source: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction", Intel 2009; MRC 1.0, ICRC. */
#include "icrc.h"

#include "icrc_table.h"

static uint32_t step8(uint32_t low, uint32_t high) {
    return icrc_table[7][low & 0xFF] ^ icrc_table[6][low >> 8 & 0xFF] ^
           icrc_table[5][low >> 16 & 0xFF] ^ icrc_table[4][low >> 24] ^
           icrc_table[3][high & 0xFF] ^ icrc_table[2][high >> 8 & 0xFF] ^
           icrc_table[1][high >> 16 & 0xFF] ^ icrc_table[0][high >> 24];
}

static uint32_t step4(uint32_t word) {
    return icrc_table[3][word & 0xFF] ^ icrc_table[2][word >> 8 & 0xFF] ^
           icrc_table[1][word >> 16 & 0xFF] ^ icrc_table[0][word >> 24];
}

/* For what remains (1-15 bytes) behind the wide ways, short inputs, and processors without them. */
static uint32_t update_table(uint32_t state, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8)
        state = step8(state ^ icrc_load(data), icrc_load(data + 4));
    if (size >= 4) {
        state = step4(state ^ icrc_load(data));
        data += 4;
        size -= 4;
    }
    for (; size > 0; data++, size--)
        state = icrc_table[0][(state ^ *data) & 0xFF] ^ state >> 8;
    return state;
}

/* Two steps of the table beat any wider way over twelve bytes, whatever the method. */
uint32_t icrc_bth(const struct icrc *icrc, uint32_t state, const uint8_t *bth) {
    (void)icrc;
    state = step8(state ^ icrc_load(bth), icrc_load(bth + 4) | 0xFF);
    return step4(state ^ icrc_load(bth + 8));
}

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define PCLMUL __attribute__((target("pclmul,sse4.1")))
#define PCLMUL_INLINE __attribute__((target("pclmul,sse4.1"), always_inline)) static inline
#define VPCLMUL __attribute__((target("vpclmulqdq,avx2,pclmul")))
#define VPCLMUL_INLINE                                                                             \
    __attribute__((target("vpclmulqdq,avx2,pclmul"), always_inline)) static inline

/* Below this, set-up and reduction cost more than they save; measured. */
enum { PCLMUL_SIZE_MIN = 32, VPCLMUL_SIZE_MIN = 256 };

/* Folding constants: {x^(n+32), x^(n-32)} mod P for a distance of n bits. */
#define FOLD_128 0x1751997D0, 0x0CCAA009E
#define FOLD_256 0x0F1DA05AA, 0x15A546366
#define FOLD_512 0x154442BD4, 0x1C6E41596
#define FOLD_1024 0x1E88EF372, 0x14A7FE880

PCLMUL_INLINE __m128i constants(int64_t low, int64_t high) {
    return _mm_set_epi64x(high, low);
}

PCLMUL_INLINE __m128i load16(const uint8_t *data) {
    return _mm_loadu_si128((const void *)data);
}

/* Moves a remainder over k's distance and adds what is there. */
PCLMUL_INLINE __m128i fold16(__m128i remainder, __m128i k, __m128i data) {
    __m128i low = _mm_clmulepi64_si128(remainder, k, 0x00);
    __m128i high = _mm_clmulepi64_si128(remainder, k, 0x11);

    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

/* Takes the last 16-byte blocks and bytes in, then reduces 128 bits to 32 (Barrett). */
PCLMUL_INLINE uint32_t finish(__m128i remainder, const uint8_t *data, size_t size) {
    const __m128i k = constants(FOLD_128);
    const __m128i k64 = constants(0x163CD6124, 0);
    const __m128i polynomial = constants(0x1DB710641, 0x1F7011641);
    const __m128i mask = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i t;
    uint32_t state;

    for (; size >= 16; data += 16, size -= 16)
        remainder = fold16(remainder, k, load16(data));
    t = _mm_clmulepi64_si128(remainder, k, 0x10);
    remainder = _mm_xor_si128(_mm_srli_si128(remainder, 8), t);
    t = _mm_srli_si128(remainder, 4);
    remainder = _mm_clmulepi64_si128(_mm_and_si128(remainder, mask), k64, 0x00);
    remainder = _mm_xor_si128(remainder, t);
    t = _mm_clmulepi64_si128(_mm_and_si128(remainder, mask), polynomial, 0x10);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, mask), polynomial, 0x00);
    state = (uint32_t)_mm_extract_epi32(_mm_xor_si128(remainder, t), 1);
    return size > 0 ? update_table(state, data, size) : state;
}

/* Four independent remainders keep the multiplier busy. */
PCLMUL static uint32_t update_pclmul(uint32_t state, const uint8_t *data, size_t size) {
    const __m128i k = constants(FOLD_512);
    const __m128i k128 = constants(FOLD_128);
    __m128i r0, r1, r2, r3;

    if (size < PCLMUL_SIZE_MIN)
        return update_table(state, data, size);
    r0 = _mm_xor_si128(load16(data), _mm_cvtsi32_si128((int)state));
    if (size < 64)
        return finish(r0, data + 16, size - 16);
    r1 = load16(data + 16);
    r2 = load16(data + 32);
    r3 = load16(data + 48);
    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
        r0 = fold16(r0, k, load16(data));
        r1 = fold16(r1, k, load16(data + 16));
        r2 = fold16(r2, k, load16(data + 32));
        r3 = fold16(r3, k, load16(data + 48));
    }
    r1 = fold16(r0, k128, r1);
    r2 = fold16(r1, k128, r2);
    r3 = fold16(r2, k128, r3);
    return finish(r3, data, size);
}

VPCLMUL_INLINE __m256i load32(const uint8_t *data) {
    return _mm256_loadu_si256((const void *)data);
}

VPCLMUL_INLINE __m256i fold32(__m256i remainder, __m256i k, __m256i data) {
    __m256i low = _mm256_clmulepi64_epi128(remainder, k, 0x00);
    __m256i high = _mm256_clmulepi64_epi128(remainder, k, 0x11);

    return _mm256_xor_si256(_mm256_xor_si256(low, high), data);
}

VPCLMUL static uint32_t update_vpclmul(uint32_t state, const uint8_t *data, size_t size) {
    __m256i k, r0, r1, r2, r3;
    __m128i last;

    if (size < VPCLMUL_SIZE_MIN)
        return update_pclmul(state, data, size);
    r0 = _mm256_xor_si256(load32(data), _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state)));
    r1 = load32(data + 32);
    r2 = load32(data + 64);
    r3 = load32(data + 96);
    k = _mm256_broadcastsi128_si256(constants(FOLD_1024));
    for (data += 128, size -= 128; size >= 128; data += 128, size -= 128) {
        r0 = fold32(r0, k, load32(data));
        r1 = fold32(r1, k, load32(data + 32));
        r2 = fold32(r2, k, load32(data + 64));
        r3 = fold32(r3, k, load32(data + 96));
    }
    k = _mm256_broadcastsi128_si256(constants(FOLD_256));
    r1 = fold32(r0, k, r1);
    r2 = fold32(r1, k, r2);
    r3 = fold32(r2, k, r3);
    for (; size >= 32; data += 32, size -= 32)
        r3 = fold32(r3, k, load32(data));
    last = fold16(_mm256_castsi256_si128(r3), constants(FOLD_128), _mm256_extracti128_si256(r3, 1));
    return finish(last, data, size);
}

/* Whether the operating system saves the registers that AVX needs: XCR0 bits 1 and 2. */
static _Bool saves_ymm(void) {
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6;
}

/* By cpuid itself: __builtin_cpu_supports would pull a global of libgcc into the core. */
static enum icrc_method best_method(void) {
    unsigned a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_PCLMUL) || !(c & bit_SSE4_1))
        return ICRC_TABLE;
    if (!(c & bit_OSXSAVE) || !(c & bit_AVX) || !saves_ymm())
        return ICRC_PCLMUL;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2) || !(c & bit_VPCLMULQDQ))
        return ICRC_PCLMUL;
    return ICRC_VPCLMUL;
}

_Bool icrc_use(struct icrc *icrc, enum icrc_method method) {
    if (method != ICRC_TABLE && method > best_method())
        return 0;
    icrc->method = method;
    icrc->update = update_table;
    if (method == ICRC_PCLMUL)
        icrc->update = update_pclmul;
    if (method == ICRC_VPCLMUL)
        icrc->update = update_vpclmul;
    return 1;
}

void icrc_choose(struct icrc *icrc) { (void)icrc_use(icrc, best_method()); }

#else

_Bool icrc_use(struct icrc *icrc, enum icrc_method method) {
    if (method != ICRC_TABLE)
        return 0;
    icrc->method = ICRC_TABLE;
    icrc->update = update_table;
    return 1;
}

void icrc_choose(struct icrc *icrc) { (void)icrc_use(icrc, ICRC_TABLE); }

#endif
