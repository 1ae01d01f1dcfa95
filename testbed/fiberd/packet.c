#include "packet.h"

#include <linux/virtio_net.h>
#include <string.h>

enum {
    ETHERNET_BYTES = 14,
    ETHERTYPE_AT = 12,
    ETHERTYPE_IPV4 = 0x0800,
    ETHERTYPE_IPV6 = 0x86dd,
    ETHERTYPE_VLAN = 0x8100,
    ETHERTYPE_VLAN_OUTER = 0x88a8,
    IPV4_MIN_BYTES = 20,
    IPV6_BYTES = 40,
    TCP_MIN_BYTES = 20,
    UDP_BYTES = 8,
    TCP_CHECKSUM_AT = 16,
    UDP_CHECKSUM_AT = 6,
    PROTOCOL_TCP = 6,
    PROTOCOL_UDP = 17,
    TCP_FIN_PSH = 0x09,
    TCP_CWR = 0x80,
    GSO_UDP_L4 = 5, /* VIRTIO_NET_HDR_GSO_UDP_L4; older headers lack it */
};

_Static_assert(sizeof(struct virtio_net_hdr) == VNET_HEADER_BYTES, "AF_PACKET's default header");

static uint16_t get16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

static void put16(uint8_t *at, uint16_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static uint32_t get32(const uint8_t *at) { return (uint32_t)get16(at) << 16 | get16(at + 2); }

static void put32(uint8_t *at, uint32_t value) {
    put16(at, (uint16_t)(value >> 16));
    put16(at + 2, (uint16_t)value);
}

/* Return a ones'-complement sum after one of its 16-bit words changed (RFC 1624, eqn. 3 before the final complement). */
static uint16_t sum_replace(uint16_t sum, uint16_t old_word, uint16_t new_word) {
    uint32_t wide = (uint32_t)sum + (uint16_t)~old_word + new_word;
    wide = (wide & 0xffff) + (wide >> 16);
    return (uint16_t)((wide & 0xffff) + (wide >> 16));
}

/* Fill in the offsets and sizes of a super-packet; false if its headers contradict each other. */
static bool describe_super_packet(const struct virtio_net_hdr *vnet, const uint8_t *frame, struct packet_shape *shape) {
    const uint32_t bytes = shape->frame_bytes;
    const unsigned kind = vnet->gso_type & ~VIRTIO_NET_HDR_GSO_ECN;
    const bool udp = kind == GSO_UDP_L4;
    if (!udp && kind != VIRTIO_NET_HDR_GSO_TCPV4 && kind != VIRTIO_NET_HDR_GSO_TCPV6)
        return false;
    if (!(vnet->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) || vnet->gso_size == 0)
        return false;

    uint32_t l3 = ETHERNET_BYTES;
    uint16_t ethertype = get16(frame + ETHERTYPE_AT);
    while (ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_VLAN_OUTER) {
        if (l3 + VLAN_TAG_BYTES > bytes)
            return false;
        ethertype = get16(frame + l3 + 2);
        l3 += VLAN_TAG_BYTES;
    }

    /* hdr_len of the virtio header is only a hint: the L4 header is where the checksum starts. */
    const uint32_t l4 = vnet->csum_start;
    const uint8_t protocol = udp ? PROTOCOL_UDP : PROTOCOL_TCP;
    if (ethertype == ETHERTYPE_IPV4) {
        if (kind == VIRTIO_NET_HDR_GSO_TCPV6 || l3 + IPV4_MIN_BYTES > bytes)
            return false;
        const uint32_t ip_bytes = (frame[l3] & 0x0fu) * 4;
        if (frame[l3] >> 4 != 4 || ip_bytes < IPV4_MIN_BYTES || l4 != l3 + ip_bytes || frame[l3 + 9] != protocol)
            return false; /* also a tunnel, whose checksum starts in the inner packet */
    } else if (ethertype == ETHERTYPE_IPV6) {
        if (kind == VIRTIO_NET_HDR_GSO_TCPV4 || l3 + IPV6_BYTES > bytes || frame[l3] >> 4 != 6)
            return false;
        /* Without extension headers: super-packets that have some are tunnels or jumbograms. */
        if (l4 != l3 + IPV6_BYTES || frame[l3 + 6] != protocol)
            return false;
    } else {
        return false;
    }

    uint32_t header = l4 + UDP_BYTES;
    if (!udp) {
        if (l4 + TCP_MIN_BYTES > bytes)
            return false;
        const uint32_t tcp_bytes = (frame[l4 + 12] >> 4) * 4u;
        if (tcp_bytes < TCP_MIN_BYTES)
            return false;
        header = l4 + tcp_bytes;
    }
    if (header >= bytes || vnet->csum_offset != (udp ? UDP_CHECKSUM_AT : TCP_CHECKSUM_AT))
        return false;

    shape->segments = (bytes - header + vnet->gso_size - 1) / vnet->gso_size;
    shape->header_bytes = header;
    shape->payload_bytes = vnet->gso_size;
    shape->l3_offset = l3;
    shape->l4_offset = l4;
    shape->ipv4 = ethertype == ETHERTYPE_IPV4;
    shape->udp = udp;
    return true;
}

bool packet_describe(const uint8_t *packet, size_t length, struct packet_shape *shape) {
    memset(shape, 0, sizeof *shape);
    if (length < VNET_HEADER_BYTES + ETHERNET_BYTES || length > UINT32_MAX)
        return false;
    struct virtio_net_hdr vnet;
    memcpy(&vnet, packet, sizeof vnet);
    shape->frame_bytes = (uint32_t)length - VNET_HEADER_BYTES;
    const bool super = vnet.gso_type != VIRTIO_NET_HDR_GSO_NONE;
    if (!super || !describe_super_packet(&vnet, packet + VNET_HEADER_BYTES, shape) || shape->segments == 1) {
        shape->segments = 1;
        shape->header_bytes = shape->payload_bytes = 0;
    }
    return true;
}

/* Offset in the frame at which the payload of segment `index` begins; at `segments` it is the end of the frame. */
static uint32_t payload_offset(const struct packet_shape *shape, uint32_t index) {
    return index == shape->segments ? shape->frame_bytes : shape->header_bytes + index * shape->payload_bytes;
}

uint32_t packet_l2_bytes(const struct packet_shape *shape, uint32_t first, uint32_t last) {
    const uint32_t payload = payload_offset(shape, last) - payload_offset(shape, first);
    return payload + (last - first) * shape->header_bytes;
}

uint32_t packet_wire_bytes(const struct packet_shape *shape, uint32_t first, uint32_t last) {
    return packet_l2_bytes(shape, first, last) + (last - first) * WIRE_OVERHEAD_BYTES;
}

size_t packet_slice_length(const struct packet_shape *shape, uint32_t first, uint32_t last) {
    return VNET_HEADER_BYTES + (size_t)shape->header_bytes + payload_offset(shape, last) - payload_offset(shape, first);
}

static void fix_ip(uint8_t *ip, bool ipv4, uint16_t ip_bytes, uint32_t first) {
    if (!ipv4) {
        put16(ip + 4, (uint16_t)(ip_bytes - IPV6_BYTES));
        return;
    }
    const uint16_t identification = (uint16_t)(get16(ip + 4) + first);
    uint16_t sum = (uint16_t)~get16(ip + 10);
    sum = sum_replace(sum, get16(ip + 2), ip_bytes);
    sum = sum_replace(sum, get16(ip + 4), identification);
    put16(ip + 2, ip_bytes);
    put16(ip + 4, identification);
    put16(ip + 10, (uint16_t)~sum);
}

void packet_slice(const uint8_t *packet, const struct packet_shape *shape, uint32_t first, uint32_t last, uint8_t *out) {
    const size_t headers = VNET_HEADER_BYTES + shape->header_bytes;
    const uint32_t from = payload_offset(shape, first);
    const uint32_t frame_bytes = shape->header_bytes + payload_offset(shape, last) - from;
    memcpy(out, packet, headers);
    memcpy(out + headers, packet + VNET_HEADER_BYTES + from, frame_bytes - shape->header_bytes);

    uint8_t *frame = out + VNET_HEADER_BYTES;
    uint8_t *l4 = frame + shape->l4_offset;
    fix_ip(frame + shape->l3_offset, shape->ipv4, (uint16_t)(frame_bytes - shape->l3_offset), first);

    /* With a partial checksum the field holds the sum of the pseudo header, and that contains the L4 length. */
    const uint16_t old_l4_bytes = (uint16_t)(shape->frame_bytes - shape->l4_offset);
    const uint16_t new_l4_bytes = (uint16_t)(frame_bytes - shape->l4_offset);
    uint8_t *checksum = l4 + (shape->udp ? UDP_CHECKSUM_AT : TCP_CHECKSUM_AT);
    put16(checksum, sum_replace(get16(checksum), old_l4_bytes, new_l4_bytes));

    if (shape->udp) {
        put16(l4 + 4, new_l4_bytes);
    } else {
        put32(l4 + 4, get32(l4 + 4) + first * shape->payload_bytes);
        if (last < shape->segments)
            l4[13] &= (uint8_t)~TCP_FIN_PSH; /* these mark the end of a burst: set in its last segment only */
        if (first > 0)
            l4[13] &= (uint8_t)~TCP_CWR; /* answers a congestion mark: set in the first segment only (RFC 3168) */
    }
    if (last - first == 1) {
        struct virtio_net_hdr vnet;
        memcpy(&vnet, out, sizeof vnet);
        vnet.gso_type = VIRTIO_NET_HDR_GSO_NONE;
        vnet.gso_size = 0;
        memcpy(out, &vnet, sizeof vnet);
    }
}

uint8_t *packet_restore_vlan(uint8_t *packet, size_t length, uint16_t tpid, uint16_t tci) {
    if (length < VNET_HEADER_BYTES + ETHERTYPE_AT)
        return packet;
    uint8_t *tagged = packet - VLAN_TAG_BYTES;
    memmove(tagged, packet, VNET_HEADER_BYTES + ETHERTYPE_AT);
    uint8_t *tag = tagged + VNET_HEADER_BYTES + ETHERTYPE_AT;
    put16(tag, tpid);
    put16(tag + 2, tci);
    struct virtio_net_hdr vnet;
    memcpy(&vnet, tagged, sizeof vnet);
    if (vnet.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)
        vnet.csum_start = (uint16_t)(vnet.csum_start + VLAN_TAG_BYTES);
    if (vnet.gso_type != VIRTIO_NET_HDR_GSO_NONE)
        vnet.hdr_len = (uint16_t)(vnet.hdr_len + VLAN_TAG_BYTES);
    memcpy(tagged, &vnet, sizeof vnet);
    return tagged;
}

bool packet_complete_checksum(uint8_t *packet, size_t length) {
    struct virtio_net_hdr vnet;
    if (length < VNET_HEADER_BYTES + ETHERNET_BYTES)
        return false;
    memcpy(&vnet, packet, sizeof vnet);
    if (vnet.gso_type != VIRTIO_NET_HDR_GSO_NONE)
        return false;
    if (vnet.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) {
        uint8_t *frame = packet + VNET_HEADER_BYTES;
        const size_t bytes = length - VNET_HEADER_BYTES;
        const size_t at = (size_t)vnet.csum_start + vnet.csum_offset;
        if (at + 2 > bytes)
            return false;
        uint64_t sum = 0; /* the field has the pseudo header's sum, for either IP version */
        for (size_t i = vnet.csum_start; i < bytes; i += 2)
            sum += i + 1 < bytes ? get16(frame + i) : (uint16_t)(frame[i] << 8);
        while (sum >> 16)
            sum = (sum & 0xffff) + (sum >> 16);
        const uint16_t checksum = (uint16_t)~sum;
        /* In UDP, 0 means no checksum (RFC 768); 0xffff is the same number in ones' complement. */
        put16(frame + at, checksum == 0 && vnet.csum_offset == UDP_CHECKSUM_AT ? 0xffff : checksum);
    }
    memset(packet, 0, VNET_HEADER_BYTES); /* also clears the flag that marks the checksum as verified */
    return true;
}

void packet_flip_bit(uint8_t *packet, size_t length, uint64_t random) {
    const uint64_t bit = random % ((length - VNET_HEADER_BYTES) * 8);
    packet[VNET_HEADER_BYTES + bit / 8] ^= (uint8_t)(1u << bit % 8);
}
