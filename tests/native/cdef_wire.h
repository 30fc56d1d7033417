/* SPDX-License-Identifier: Apache-2.0 */
/* headers: bytes.h psn.h wire.h icrc.h encap.h mrc_wire.h fuzz_wire.h */
/* sources: wire.c encap.c icrc.c mrc_wire.c fuzz_wire.c */
uint32_t wire_pad(uint32_t payload_size);
_Bool wire_is_write(uint8_t opcode);
_Bool wire_has_immediate(uint8_t opcode);
_Bool wire_ends_message(uint8_t opcode);
uint32_t psn_add(uint32_t psn, int32_t count);
int32_t psn_diff(uint32_t a, uint32_t b);
_Bool psn_before(uint32_t a, uint32_t b);
_Bool psn_in(uint32_t psn, uint32_t first, uint32_t count);
void icrc_store(uint32_t state, uint8_t *out);
