/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a program: the kernel seems to refuse what its packet sockets send.
 *
 * The file that MRC_REFUSE names holds two int32: the index of an interface (0: each), and the
 * errno that sending on it gives; 0: nothing is refused. A test rewrites it while the program runs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static const volatile int32_t *orders;

__attribute__((constructor)) static void look_for_orders(void) {
    const char *path = getenv("MRC_REFUSE");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *map = MAP_FAILED;

    if (fd >= 0) {
        map = mmap(NULL, 2 * sizeof *orders, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
    }
    orders = map == MAP_FAILED ? NULL : map;
}

static int refused(int fd) {
    struct sockaddr_ll address = {0};
    socklen_t length = sizeof address;

    if (orders == NULL || orders[1] == 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0 ||
        address.sll_family != AF_PACKET || (orders[0] != 0 && address.sll_ifindex != orders[0]))
        return 0;
    errno = orders[1];
    return 1;
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags) {
    int (*next)(int, struct mmsghdr *, unsigned int, int) = dlsym(RTLD_NEXT, "sendmmsg");

    return refused(fd) ? -1 : next(fd, messages, count, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    ssize_t (*next)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");

    return refused(fd) ? -1 : next(fd, message, flags);
}
