/* SPDX-License-Identifier: Apache-2.0 */
/* The CRC-32 table for slicing by eight, computed by the compiler; included by icrc.c alone.
 *
 * icrc_table[k][b] is the register that byte b leaves behind after k further zero bytes. A CRC is
 * linear, so each row follows from its entries at the powers of two: they are row k's arguments,
 * bit 0 first. tests/test_icrc.py holds the result against zlib.
 */
#ifndef ICRC_TABLE_H
#define ICRC_TABLE_H

#include <stdint.h>

#define ICRC_ENTRY(i, a, b, c, d, e, f, g, h)                                                      \
    (((i)&1 ? (a) : 0) ^ ((i)&2 ? (b) : 0) ^ ((i)&4 ? (c) : 0) ^ ((i)&8 ? (d) : 0) ^               \
     ((i)&16 ? (e) : 0) ^ ((i)&32 ? (f) : 0) ^ ((i)&64 ? (g) : 0) ^ ((i)&128 ? (h) : 0))
#define ICRC_ENTRIES_4(i, ...)                                                                     \
    ICRC_ENTRY(i, __VA_ARGS__), ICRC_ENTRY((i) + 1, __VA_ARGS__),                                  \
        ICRC_ENTRY((i) + 2, __VA_ARGS__), ICRC_ENTRY((i) + 3, __VA_ARGS__)
#define ICRC_ENTRIES_16(i, ...)                                                                    \
    ICRC_ENTRIES_4(i, __VA_ARGS__), ICRC_ENTRIES_4((i) + 4, __VA_ARGS__),                          \
        ICRC_ENTRIES_4((i) + 8, __VA_ARGS__), ICRC_ENTRIES_4((i) + 12, __VA_ARGS__)
#define ICRC_ENTRIES_64(i, ...)                                                                    \
    ICRC_ENTRIES_16(i, __VA_ARGS__), ICRC_ENTRIES_16((i) + 16, __VA_ARGS__),                       \
        ICRC_ENTRIES_16((i) + 32, __VA_ARGS__), ICRC_ENTRIES_16((i) + 48, __VA_ARGS__)
#define ICRC_ROW(...)                                                                              \
    {                                                                                              \
        ICRC_ENTRIES_64(0, __VA_ARGS__), ICRC_ENTRIES_64(64, __VA_ARGS__),                         \
            ICRC_ENTRIES_64(128, __VA_ARGS__), ICRC_ENTRIES_64(192, __VA_ARGS__)                   \
    }

static const uint32_t icrc_table[8][256] = {
    ICRC_ROW(0x77073096u, 0xEE0E612Cu, 0x076DC419u, 0x0EDB8832u, /* zlib's table: 0 bytes after */
             0x1DB71064u, 0x3B6E20C8u, 0x76DC4190u, 0xEDB88320u),
    ICRC_ROW(0x191B3141u, 0x32366282u, 0x646CC504u, 0xC8D98A08u,
             0x4AC21251u, 0x958424A2u, 0xF0794F05u, 0x3B83984Bu),
    ICRC_ROW(0x01C26A37u, 0x0384D46Eu, 0x0709A8DCu, 0x0E1351B8u,
             0x1C26A370u, 0x384D46E0u, 0x709A8DC0u, 0xE1351B80u),
    ICRC_ROW(0xB8BC6765u, 0xAA09C88Bu, 0x8F629757u, 0xC5B428EFu,
             0x5019579Fu, 0xA032AF3Eu, 0x9B14583Du, 0xED59B63Bu),
    ICRC_ROW(0x3D6029B0u, 0x7AC05360u, 0xF580A6C0u, 0x30704BC1u,
             0x60E09782u, 0xC1C12F04u, 0x58F35849u, 0xB1E6B092u),
    ICRC_ROW(0xCB5CD3A5u, 0x4DC8A10Bu, 0x9B914216u, 0xEC53826Du,
             0x03D6029Bu, 0x07AC0536u, 0x0F580A6Cu, 0x1EB014D8u),
    ICRC_ROW(0xA6770BB4u, 0x979F1129u, 0xF44F2413u, 0x33EF4E67u,
             0x67DE9CCEu, 0xCFBD399Cu, 0x440B7579u, 0x8816EAF2u),
    ICRC_ROW(0xCCAA009Eu, 0x4225077Du, 0x844A0EFAu, 0xD3E51BB5u,
             0x7CBB312Bu, 0xF9766256u, 0x299DC2EDu, 0x533B85DAu),
};

#endif
