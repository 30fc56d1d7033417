/* SPDX-License-Identifier: Apache-2.0 */
/* What is allowed in a configuration; its defaults are mrc_config_default() in mrc.h. */
#ifndef CONFIG_H
#define CONFIG_H

#include "mrc.h"

bool config_is_valid(const mrc_config *config);

#endif
