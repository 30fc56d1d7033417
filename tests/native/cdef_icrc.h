/* SPDX-License-Identifier: Apache-2.0 */
/* headers: icrc.h */
/* sources: icrc.c */
void icrc_store(uint32_t state, uint8_t *out);
uint32_t icrc_load(const uint8_t *in);
