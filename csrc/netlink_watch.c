/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "netlink_watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RECEIVE_BUFFER = 1 << 20,
    SYNC_TRIES = 3,
    MESSAGE_BUFFER = 32768, /* the kernel's dumps come in pieces of at most this */
    SYNC_TIMEOUT_MS = 200,
    USABLE = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP,
};

#define MEGABIT 1000000ull

/* ---- Opening ---- */

int netlink_watch_open(struct netlink_watch *watch, uint16_t udp_port, struct watched_hop *hops,
                       uint32_t hop_count) {
    struct sockaddr_nl address = {
        .nl_family = AF_NETLINK,
        .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR | RTMGRP_NEIGH,
    };
    int size = RECEIVE_BUFFER;

    memset(watch, 0, sizeof *watch);
    memset(hops, 0, hop_count * sizeof *hops);
    watch->hops = hops;
    watch->hop_count = hop_count;
    watch->udp_port = udp_port;
    watch->nudge4 = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    watch->nudge6 = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    watch->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (watch->fd < 0 || bind(watch->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int error = errno;

        netlink_watch_close(watch);
        return error;
    }
    setsockopt(watch->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    return 0;
}

void netlink_watch_close(struct netlink_watch *watch) {
    int descriptors[] = {watch->fd, watch->nudge4, watch->nudge6};

    for (size_t i = 0; i < sizeof descriptors / sizeof descriptors[0]; i++) {
        if (descriptors[i] >= 0)
            close(descriptors[i]);
    }
    watch->fd = watch->nudge4 = watch->nudge6 = -1;
}

/* ---- Attributes ---- */

/* What is left of a message's attributes; the kernel's macros convert signs silently. */
struct attributes {
    const uint8_t *at;
    size_t left;
};

static struct attributes attributes_of(const struct nlmsghdr *message, size_t fixed) {
    size_t skip = NLMSG_HDRLEN + NLMSG_ALIGN(fixed);

    if (message->nlmsg_len < skip)
        return (struct attributes){NULL, 0};
    return (struct attributes){(const uint8_t *)message + skip, message->nlmsg_len - skip};
}

/* The next attribute: its type, data and size; false at the end. */
static bool next_attribute(struct attributes *attributes, struct rtattr *header,
                           const uint8_t **data) {
    size_t whole;

    if (attributes->left < sizeof *header)
        return false;
    memcpy(header, attributes->at, sizeof *header);
    if (header->rta_len < sizeof *header || header->rta_len > attributes->left)
        return false;
    *data = attributes->at + sizeof *header;
    whole = RTA_ALIGN((size_t)header->rta_len);
    header->rta_len = (uint16_t)(header->rta_len - sizeof *header);
    whole = whole < attributes->left ? whole : attributes->left;
    attributes->at += whole;
    attributes->left -= whole;
    return true;
}

/* ---- Links ---- */

static uint64_t rate_of(const struct netlink_watch *watch, const char *name) {
    struct ethtool_cmd command = {.cmd = ETHTOOL_GSET};
    struct ifreq request = {.ifr_data = (char *)&command};
    uint32_t speed;

    memcpy(request.ifr_name, name, WATCH_NAME);
    if (ioctl(watch->nudge4, SIOCETHTOOL, &request) != 0)
        return 0;
    speed = ethtool_cmd_speed(&command);
    return speed == 0 || speed == (uint32_t)SPEED_UNKNOWN ? 0 : speed * MEGABIT;
}

static void forget_hops(struct netlink_watch *watch, uint32_t plane) {
    for (uint32_t i = 0; i < watch->hop_count; i++) {
        if (watch->hops[i].plane == plane)
            watch->hops[i].has_mac = false;
    }
}

static void remove_link(struct netlink_watch *watch, uint32_t number) {
    struct watched_plane *plane = &watch->planes[number];

    plane->index = 0;
    plane->info.up = false;
    plane->address_count = 0;
    plane->info.address.version = 0;
    forget_hops(watch, number);
}

static void on_link(struct netlink_watch *watch, const struct nlmsghdr *message) {
    const struct ifinfomsg *link = NLMSG_DATA(message);
    struct attributes attributes = attributes_of(message, sizeof *link);
    struct rtattr header;
    const uint8_t *data;
    const char *name = NULL;
    const uint8_t *mac = NULL;
    uint32_t mtu = 0;

    if (link->ifi_family != AF_UNSPEC)
        return; /* a bridge tells of its ports, and calls it deletion when one leaves */
    while (next_attribute(&attributes, &header, &data)) {
        if (header.rta_type == IFLA_IFNAME)
            name = (const char *)data;
        else if (header.rta_type == IFLA_MTU && header.rta_len == sizeof mtu)
            memcpy(&mtu, data, sizeof mtu);
        else if (header.rta_type == IFLA_ADDRESS && header.rta_len == 6)
            mac = data;
    }
    for (uint32_t i = 0; i < MRC_PLANES && name != NULL; i++) {
        struct watched_plane *plane = &watch->planes[i];
        bool is_it = plane->is_used && strncmp(plane->name, name, WATCH_NAME) == 0;

        if (plane->is_used && plane->index == link->ifi_index &&
            (!is_it || message->nlmsg_type == RTM_DELLINK))
            remove_link(watch, i);
        if (!is_it || message->nlmsg_type == RTM_DELLINK)
            continue;
        if (plane->index != link->ifi_index)
            remove_link(watch, i);
        plane->index = link->ifi_index;
        plane->is_seen = true;
        plane->info.mtu = mtu;
        plane->info.up = (link->ifi_flags & IFF_UP) && (link->ifi_flags & IFF_RUNNING);
        if (mac != NULL && memcmp(plane->info.mac, mac, 6) != 0) {
            memcpy(plane->info.mac, mac, 6);
            forget_hops(watch, i); /* so does the kernel; asking anew tells them our address */
        }
        plane->info.rate_bps = rate_of(watch, plane->name);
    }
}

/* ---- Addresses ---- */

static bool is_same(const mrc_address *a, const mrc_address *b) {
    return a->version == b->version && memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static bool is_link_local(const mrc_address *address) {
    if (address->version == 6)
        return address->bytes[0] == 0xFE && (address->bytes[1] & 0xC0) == 0x80;
    return address->bytes[0] == 169 && address->bytes[1] == 254;
}

/* IPv6 before IPv4 before link-local before none. */
static int kind(const mrc_address *address) {
    if (address->version == 0)
        return 0;
    if (is_link_local(address))
        return 1;
    return address->version == 6 ? 3 : 2;
}

/* Higher is better: what was asked for, what peers know, then by kind. */
static int preference(const struct watched_plane *plane, const mrc_address *address) {
    if (is_same(address, &plane->wanted))
        return 5;
    return is_same(address, &plane->kept) ? 4 : kind(address);
}

static void choose_address(struct watched_plane *plane) {
    mrc_address best = {0};
    int most = 0;

    for (uint32_t i = 0; i < plane->address_count; i++) {
        int here = preference(plane, &plane->addresses[i]);

        if (here > most) {
            most = here;
            best = plane->addresses[i];
        }
    }
    plane->info.address = best;
    /* A link that goes down takes IPv6 addresses with it, but for no longer than that: what is left
     * then, an IPv4 or a link-local address, stands in until they are back. */
    if (kind(&best) >= kind(&plane->kept))
        plane->kept = best;
}

static void set_address(struct watched_plane *plane, const mrc_address *address, bool is_there) {
    uint32_t least = 0;
    uint32_t i = 0;

    for (; i < plane->address_count && !is_same(&plane->addresses[i], address); i++) {
        if (preference(plane, &plane->addresses[i]) < preference(plane, &plane->addresses[least]))
            least = i;
    }
    if (!is_there && i < plane->address_count)
        plane->addresses[i] = plane->addresses[--plane->address_count];
    else if (is_there && i < WATCH_ADDRESSES)
        plane->address_count += i == plane->address_count;
    else if (is_there && preference(plane, address) > preference(plane, &plane->addresses[least]))
        i = least; /* of more than we can hold, the best are held */
    if (is_there && i < WATCH_ADDRESSES)
        plane->addresses[i] = *address;
}

static bool take_address(int family, const void *data, size_t size, mrc_address *address) {
    size_t wanted = family == AF_INET6 ? 16 : 4;

    if ((family != AF_INET6 && family != AF_INET) || size != wanted)
        return false;
    memset(address, 0, sizeof *address);
    address->version = family == AF_INET6 ? 6 : 4;
    memcpy(address->bytes, data, wanted);
    return true;
}

static void on_address(struct netlink_watch *watch, const struct nlmsghdr *message) {
    const struct ifaddrmsg *about = NLMSG_DATA(message);
    struct attributes attributes = attributes_of(message, sizeof *about);
    struct rtattr header;
    const uint8_t *data;
    uint32_t flags = about->ifa_flags;
    mrc_address address = {0};
    bool is_there;

    while (next_attribute(&attributes, &header, &data)) {
        if (header.rta_type == IFA_FLAGS && header.rta_len == sizeof flags)
            memcpy(&flags, data, sizeof flags);
        else if (header.rta_type == IFA_LOCAL ||
                 (header.rta_type == IFA_ADDRESS && address.version == 0))
            take_address(about->ifa_family, data, header.rta_len, &address);
    }
    if (address.version == 0)
        return;
    is_there = message->nlmsg_type == RTM_NEWADDR && !(flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED));
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        struct watched_plane *plane = &watch->planes[i];

        if (!plane->is_used || plane->index != (int)about->ifa_index)
            continue;
        set_address(plane, &address, is_there);
        if (!watch->is_syncing) /* the dump may not have told the one in use yet */
            choose_address(plane);
    }
}

/* ---- Neighbours ---- */

static void on_neighbour(struct netlink_watch *watch, const struct nlmsghdr *message) {
    const struct ndmsg *about = NLMSG_DATA(message);
    struct attributes attributes = attributes_of(message, sizeof *about);
    struct rtattr header;
    const uint8_t *data;
    const uint8_t *mac = NULL;
    mrc_address address = {0};

    if (message->nlmsg_type != RTM_NEWNEIGH || !(about->ndm_state & USABLE))
        return;
    while (next_attribute(&attributes, &header, &data)) {
        if (header.rta_type == NDA_DST)
            take_address(about->ndm_family, data, header.rta_len, &address);
        else if (header.rta_type == NDA_LLADDR && header.rta_len == 6)
            mac = data;
    }
    for (uint32_t i = 0; i < watch->hop_count && mac != NULL; i++) {
        struct watched_hop *hop = &watch->hops[i];

        if (!hop->is_used || watch->planes[hop->plane].index != about->ndm_ifindex ||
            !is_same(&hop->next_hop, &address))
            continue;
        hop->has_mac = true;
        memcpy(hop->mac, mac, 6);
    }
}

/* ---- Messages ---- */

/* True when the dump that is being read ends here. */
static bool on_message(struct netlink_watch *watch, const struct nlmsghdr *message) {
    switch (message->nlmsg_type) {
    case RTM_NEWLINK:
    case RTM_DELLINK:
        on_link(watch, message);
        break;
    case RTM_NEWADDR:
    case RTM_DELADDR:
        on_address(watch, message);
        break;
    case RTM_NEWNEIGH:
    case RTM_DELNEIGH:
        on_neighbour(watch, message);
        break;
    default:
        break;
    }
    if (message->nlmsg_flags & NLM_F_DUMP_INTR)
        watch->is_overrun = true; /* the tables changed while they were dumped */
    return (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR) &&
           message->nlmsg_seq == watch->sequence;
}

/* Reads one datagram. Returns its size; 0: none. */
static int read_some(struct netlink_watch *watch, bool *is_done) {
    _Alignas(struct nlmsghdr) uint8_t buffer[MESSAGE_BUFFER];
    ssize_t size = recv(watch->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    size_t at = 0;

    if (size < 0) {
        watch->is_overrun = watch->is_overrun || errno == ENOBUFS;
        return 0;
    }
    while (at + sizeof(struct nlmsghdr) <= (size_t)size) {
        const struct nlmsghdr *message = (const struct nlmsghdr *)(const void *)(buffer + at);

        if (message->nlmsg_len < sizeof *message || message->nlmsg_len > (size_t)size - at)
            break;
        *is_done = on_message(watch, message) || *is_done;
        at += NLMSG_ALIGN((size_t)message->nlmsg_len);
    }
    return (int)size;
}

static void dump(struct netlink_watch *watch, uint16_t type) {
    struct {
        struct nlmsghdr header;
        struct rtgenmsg about;
    } request = {
        .header = {.nlmsg_len = sizeof request,
                   .nlmsg_type = type,
                   .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
                   .nlmsg_seq = ++watch->sequence},
    };
    struct pollfd waiting = {.fd = watch->fd, .events = POLLIN};
    bool is_done = false;

    if (send(watch->fd, &request, sizeof request, 0) < 0)
        return;
    while (!is_done && poll(&waiting, 1, SYNC_TIMEOUT_MS) > 0)
        read_some(watch, &is_done);
}

static void read_all(struct netlink_watch *watch) {
    watch->is_overrun = false;
    watch->is_syncing = true;
    for (uint32_t i = 0; i < MRC_PLANES; i++)
        watch->planes[i].is_seen = false;
    dump(watch, RTM_GETLINK);
    for (uint32_t i = 0; i < MRC_PLANES; i++) {
        if (watch->planes[i].is_used && !watch->planes[i].is_seen)
            remove_link(watch, i);
        watch->planes[i].address_count = 0;
    }
    dump(watch, RTM_GETADDR);
    watch->is_syncing = false;
    for (uint32_t i = 0; i < MRC_PLANES; i++)
        choose_address(&watch->planes[i]);
    dump(watch, RTM_GETNEIGH);
}

void netlink_watch_sync(struct netlink_watch *watch) {
    uint32_t tries = 0;

    do {
        read_all(watch);
    } while (watch->is_overrun && ++tries < SYNC_TRIES);
}

bool netlink_watch_read(struct netlink_watch *watch) {
    bool has_any = false;
    bool is_done = false;

    while (read_some(watch, &is_done) > 0)
        has_any = true;
    if (watch->is_overrun) {
        netlink_watch_sync(watch);
        has_any = true;
    }
    return has_any;
}

void netlink_watch_nudge(struct netlink_watch *watch, struct watched_hop *hop) {
    const struct watched_plane *plane = &watch->planes[hop->plane];
    struct sockaddr_in6 six = {.sin6_family = AF_INET6,
                               .sin6_port = htons(watch->udp_port),
                               .sin6_scope_id = (uint32_t)plane->index};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(watch->udp_port)};
    bool is_six = hop->next_hop.version == 6;
    int fd = is_six ? watch->nudge6 : watch->nudge4;

    if (plane->index == 0 || fd < 0)
        return;
    memcpy(&six.sin6_addr, hop->next_hop.bytes, 16);
    memcpy(&four.sin_addr, hop->next_hop.bytes, 4);
    /* Two planes may share a subnet: the device decides, not the route. */
    setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, plane->name, (socklen_t)strlen(plane->name) + 1);
    sendto(fd, NULL, 0, MSG_DONTWAIT,
           is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four,
           is_six ? sizeof six : sizeof four);
}
