// SPDX-License-Identifier: Apache-2.0
// The reference for mrc.verbs: one byte to and fro by UDP with blocking sockets, nothing else.
// `pingpong ADDRESS` echoes until killed; `pingpong ADDRESS SECONDS` prints the median round trip
// in microseconds. IPv6.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#define PORT 7009
#define MOST_TRIPS (1 << 22)

static double trips[MOST_TRIPS];

static double now_us(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int by_size(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

static int serve(int fd, const struct sockaddr_in6 *address)
{
    struct sockaddr_in6 peer;
    char byte;

    if (bind(fd, (const struct sockaddr *)address, sizeof *address) != 0)
        return 1;
    puts("listening");
    fflush(stdout);
    for (;;) {
        socklen_t size = sizeof peer;

        if (recvfrom(fd, &byte, 1, 0, (struct sockaddr *)&peer, &size) != 1
            || sendto(fd, &byte, 1, 0, (struct sockaddr *)&peer, size) != 1)
            return 1;
    }
}

static int ask(int fd, const struct sockaddr_in6 *address, double seconds)
{
    double start, before, now;
    size_t count = 0;
    char byte = 'x';

    if (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0)
        return 1;
    start = now = now_us();
    while (now < start + seconds * 1e6 && count < MOST_TRIPS) {
        if (send(fd, &byte, 1, 0) != 1 || recv(fd, &byte, 1, 0) != 1)
            return 1;
        before = now;
        now = now_us();
        trips[count++] = now - before;
    }
    if (count == 0)
        return 1;
    qsort(trips, count, sizeof trips[0], by_size);
    printf("%.3f\n", trips[count / 2]);
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(PORT) };
    struct timeval patience = { .tv_sec = 5 };
    int fd = socket(AF_INET6, SOCK_DGRAM, 0);
    int code;

    if (argc < 2 || fd < 0 || inet_pton(AF_INET6, argv[1], &address.sin6_addr) != 1)
        return 2;
    if (argc < 3) {
        code = serve(fd, &address);
    } else {
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        code = ask(fd, &address, atof(argv[2]));
    }
    if (code != 0)
        perror("pingpong");
    return code;
}
