/* Parse and modify packets as AF_PACKET delivers them with PACKET_VNET_HDR: pure functions over bytes.
 *
 * A packet here is a struct virtio_net_hdr (VNET_HEADER_BYTES, host byte order) followed by an Ethernet frame. The frame
 * may be a GSO super-packet: up to 64 KiB of one TCP or UDP flow that a real wire would carry as MTU-sized segments. */
#ifndef FIBERD_PACKET_H
#define FIBERD_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ETHERNET_HEADER_BYTES = 14,
    VNET_HEADER_BYTES = 10,  /* struct virtio_net_hdr without num_buffers, the AF_PACKET default */
    VLAN_TAG_BYTES = 4,
    WIRE_OVERHEAD_BYTES = 24 /* preamble 8 + FCS 4 + inter-packet gap 12 (IEEE 802.3), per segment */
};

struct packet_shape {
    uint32_t frame_bytes;    /* of the frame in memory */
    uint32_t segments;       /* MTU segments that it represents; 1 if it cannot be split */
    uint32_t header_bytes;   /* Ethernet to L4 inclusive, repeated in each segment; 0 when segments is 1 */
    uint32_t payload_bytes;  /* L4 payload of each segment except a shorter last one; 0 when segments is 1 */
    uint32_t l3_offset;      /* of the IP header in the frame */
    uint32_t l4_offset;      /* of the TCP or UDP header in the frame */
    bool ipv4;
    bool udp;
};

/* Describe `packet`. False if it is too short. A super-packet with contradictory headers is described as one segment: it is
 * forwarded whole, for the kernel to accept or drop, but never split. */
bool packet_describe(const uint8_t *packet, size_t length, struct packet_shape *shape);

/* L2 bytes of segments [first, last) on a real wire: every segment with its headers, no preamble, FCS or gap. */
uint32_t packet_l2_bytes(const struct packet_shape *shape, uint32_t first, uint32_t last);

/* The same with WIRE_OVERHEAD_BYTES per segment, as used for the rate. */
uint32_t packet_wire_bytes(const struct packet_shape *shape, uint32_t first, uint32_t last);

/* Length of the packet that packet_slice() writes for segments [first, last). */
size_t packet_slice_length(const struct packet_shape *shape, uint32_t first, uint32_t last);

/* Write segments [first, last) of `packet` to `out` as a separate packet: a smaller super-packet or a plain one. Updates IP
 * length, identification and checksum, TCP sequence number and flags, UDP length and the partial checksum, as the
 * kernel's own segmentation does (net/ipv4/tcp_offload.c, udp_offload.c, af_inet.c). `shape` is from packet_describe()
 * and has more than one segment; first < last <= segments; `out` has room for packet_slice_length(). */
void packet_slice(const uint8_t *packet, const struct packet_shape *shape, uint32_t first, uint32_t last, uint8_t *out);

/* Restore the VLAN tag that the kernel strips. `packet` has VLAN_TAG_BYTES of room in front of it, where the packet starts
 * afterwards. Returns the new start; the length grows by VLAN_TAG_BYTES. `length` must include both addresses. */
uint8_t *packet_restore_vlan(uint8_t *packet, size_t length, uint16_t tpid, uint16_t tci);

/* Complete the checksum that the sender offloaded to its interface, and make the receiver verify it, as on a real wire.
 * Returns false and changes nothing for a super-packet or inconsistent fields. */
bool packet_complete_checksum(uint8_t *packet, size_t length);

/* Flip one bit of the Ethernet frame: number `random` modulo the number of bits. `length` exceeds the virtio header. */
void packet_flip_bit(uint8_t *packet, size_t length, uint64_t random);

#endif
