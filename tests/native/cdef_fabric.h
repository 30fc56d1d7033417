/* SPDX-License-Identifier: Apache-2.0 */
/* headers: fabric/fabric.h */
/* sources: fabric/fabric.c fabric/frame.c fabric/node.c fabric/port.c fabric/route.c
            fabric/rules.c timer_heap.c */
