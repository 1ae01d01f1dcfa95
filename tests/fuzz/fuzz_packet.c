/* packet.c on any bytes: descriptions do not contradict themselves, and slices add up to the whole.
 *
 * Input: uint16 `stretch`, uint16 `tci`, uint32 `cuts`, then a packet (virtio header and frame). The frame is lengthened by
 * `stretch` bytes, so that short inputs reach 64 KiB; `cuts` decides where the packet is cut. */
#include "fuzz.h"
#include "frame.h"
#include "packet.h"

#include <linux/virtio_net.h>
#include <stdbool.h>
#include <string.h>

enum { FIN_PSH = 0x09, CWR = 0x80 };

/* In memory of exactly its size. */
struct bytes {
    uint8_t *data;
    size_t length;
};

static struct bytes exactly(size_t length) { return (struct bytes){malloc(length + (length == 0)), length}; }

/* The Internet checksum's sum over an even number of bytes, as a residue: 0 and 0xffff are the same. */
static uint32_t residue(const uint8_t *at, size_t bytes) {
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i += 2)
        sum += big16(at + i);
    return (uint32_t)(sum % 0xffff);
}

static struct virtio_net_hdr vnet_of(const uint8_t *packet) {
    struct virtio_net_hdr vnet;
    memcpy(&vnet, packet, sizeof vnet);
    return vnet;
}

static size_t checksum_at(const struct packet_shape *shape) { return shape->l4_offset + (shape->udp ? 6u : 16u); }

static void check_shape(const struct packet_shape *shape, size_t length) {
    const uint64_t segments = shape->segments, header = shape->header_bytes, payload = shape->payload_bytes;
    CHECK(shape->frame_bytes == length - VNET_HEADER_BYTES, "%u of %zu", shape->frame_bytes, length);
    CHECK(segments >= 1, "no segment");
    if (segments == 1) {
        CHECK(header == 0 && payload == 0, "one segment has no parts");
    } else {
        CHECK(14 <= shape->l3_offset && shape->l3_offset + 20 <= shape->l4_offset, "l3 %u", shape->l3_offset);
        CHECK(shape->l4_offset + 8 <= header, "l4 %u, header %lu", shape->l4_offset, header);
        CHECK(header + (segments - 1) * payload < shape->frame_bytes, "the last segment is empty");
        CHECK(header + segments * payload >= shape->frame_bytes, "bytes beyond the last segment");
    }
    uint64_t l2 = 0, wire = 0;
    for (uint32_t i = 0; i < segments; i++) {
        l2 += packet_l2_bytes(shape, i, i + 1);
        wire += packet_wire_bytes(shape, i, i + 1);
        CHECK(packet_l2_bytes(shape, i, i + 1) <= packet_l2_bytes(shape, 0, 1), "segment %u is longer than the first", i);
    }
    CHECK(l2 == packet_l2_bytes(shape, 0, shape->segments), "%lu L2 bytes", l2);
    CHECK(l2 == shape->frame_bytes + (segments - 1) * header, "%lu L2 bytes", l2);
    CHECK(wire == packet_wire_bytes(shape, 0, shape->segments) && wire == l2 + 24 * segments, "%lu wire bytes", wire);
}

static struct bytes slice(struct bytes whole, const struct packet_shape *shape, uint32_t first, uint32_t last) {
    struct bytes out = exactly(packet_slice_length(shape, first, last));
    packet_slice(whole.data, shape, first, last, out.data);
    return out;
}

/* The slice has the whole's headers but for what segmentation changes. */
static void check_headers(struct bytes whole, const struct packet_shape *shape, struct bytes out, uint32_t first,
                          uint32_t last) {
    const uint8_t *old = whole.data + VNET_HEADER_BYTES;
    const uint8_t *new = out.data + VNET_HEADER_BYTES;
    const uint32_t l3 = shape->l3_offset, l4 = shape->l4_offset;
    const uint32_t frame_bytes = (uint32_t)out.length - VNET_HEADER_BYTES;
    uint8_t *expected = malloc(shape->header_bytes);
    memcpy(expected, old, shape->header_bytes);

    /* What may differ is checked here and then taken over. */
    if (shape->ipv4) {
        CHECK(big16(new + l3 + 2) == ((frame_bytes - l3) & 0xffff), "IP length %u", big16(new + l3 + 2));
        CHECK(big16(new + l3 + 4) == ((big16(old + l3 + 4) + first) & 0xffff), "identification");
        CHECK(residue(old + l3, l4 - l3) == residue(new + l3, l4 - l3), "IP checksum");
        memcpy(expected + l3 + 2, new + l3 + 2, 4);
        memcpy(expected + l3 + 10, new + l3 + 10, 2);
    } else {
        CHECK(big16(new + l3 + 4) == ((frame_bytes - l3 - 40) & 0xffff), "IPv6 length %u", big16(new + l3 + 4));
        memcpy(expected + l3 + 4, new + l3 + 4, 2);
    }
    const uint32_t old_bytes = (shape->frame_bytes - l4) & 0xffff, new_bytes = (frame_bytes - l4) & 0xffff;
    const size_t sum_at = checksum_at(shape);
    CHECK((big16(old + sum_at) + new_bytes) % 0xffff == (big16(new + sum_at) + old_bytes) % 0xffff, "partial checksum");
    memcpy(expected + sum_at, new + sum_at, 2);
    if (shape->udp) {
        CHECK(big16(new + l4 + 4) == new_bytes, "UDP length %u", big16(new + l4 + 4));
        memcpy(expected + l4 + 4, new + l4 + 4, 2);
    } else {
        CHECK(big32(new + l4 + 4) == big32(old + l4 + 4) + first * shape->payload_bytes, "sequence number");
        memcpy(expected + l4 + 4, new + l4 + 4, 4);
        if (last < shape->segments)
            expected[l4 + 13] &= (uint8_t)~FIN_PSH;
        if (first > 0)
            expected[l4 + 13] &= (uint8_t)~CWR;
    }
    CHECK(memcmp(expected, new, shape->header_bytes) == 0, "a header field that is none of segmentation's");
    free(expected);
}

/* A slice describes as itself. Returns its shape. */
static struct packet_shape check_slice(struct bytes whole, const struct packet_shape *shape, struct bytes out,
                                       uint32_t first, uint32_t last) {
    check_headers(whole, shape, out, first, last);
    const struct virtio_net_hdr old = vnet_of(whole.data), new = vnet_of(out.data);
    CHECK(new.flags == old.flags && new.csum_start == old.csum_start && new.csum_offset == old.csum_offset &&
              new.hdr_len == old.hdr_len,
          "virtio header");
    if (last - first == 1)
        CHECK(new.gso_type == 0 && new.gso_size == 0, "a single segment is no super-packet");
    else
        CHECK(new.gso_type == old.gso_type && new.gso_size == old.gso_size, "still a super-packet");

    struct packet_shape again;
    CHECK(packet_describe(out.data, out.length, &again), "a slice is a packet");
    check_shape(&again, out.length);
    CHECK(again.segments == last - first, "[%u, %u) has %u segments", first, last, again.segments);
    CHECK(packet_l2_bytes(&again, 0, again.segments) == packet_l2_bytes(shape, first, last), "its L2 bytes");
    if (again.segments > 1)
        CHECK(again.header_bytes == shape->header_bytes && again.payload_bytes == shape->payload_bytes &&
                  again.l3_offset == shape->l3_offset && again.l4_offset == shape->l4_offset &&
                  again.ipv4 == shape->ipv4 && again.udp == shape->udp,
              "its shape");
    return again;
}

/* Equal but for the two ways to write zero in a ones'-complement sum. */
static void check_same(struct bytes a, struct bytes b, const struct packet_shape *shape) {
    CHECK(a.length == b.length, "%zu and %zu bytes", a.length, b.length);
    const size_t fields[] = {VNET_HEADER_BYTES + checksum_at(shape), VNET_HEADER_BYTES + shape->l3_offset + 10};
    for (size_t i = 0; i < (shape->ipv4 ? 2u : 1u); i++) {
        CHECK(big16(a.data + fields[i]) % 0xffff == big16(b.data + fields[i]) % 0xffff, "checksum %zu", i);
        memcpy(a.data + fields[i], b.data + fields[i], 2);
    }
    CHECK(memcmp(a.data, b.data, a.length) == 0, "a slice of a slice");
}

/* Cut the packet into pieces, and one of them again. */
static void check_slices(struct bytes whole, const struct packet_shape *shape, uint32_t cuts) {
    const uint8_t *payload = whole.data + VNET_HEADER_BYTES + shape->header_bytes;
    size_t done = 0;
    for (uint32_t first = 0, last; first < shape->segments; first = last) {
        cuts = cuts * 1664525 + 1013904223;
        last = first + 1 + (cuts >> 8) % (shape->segments - first);
        struct bytes out = slice(whole, shape, first, last);
        const struct packet_shape inner = check_slice(whole, shape, out, first, last);
        const size_t bytes = out.length - VNET_HEADER_BYTES - shape->header_bytes;
        CHECK(memcmp(out.data + VNET_HEADER_BYTES + shape->header_bytes, payload + done, bytes) == 0, "payload");
        done += bytes;
        if (inner.segments > 1) {
            const uint32_t from = (cuts >> 4) % inner.segments;
            const uint32_t to = from + 1 + (cuts >> 12) % (inner.segments - from);
            struct bytes twice = slice(out, &inner, from, to), once = slice(whole, shape, first + from, first + to);
            check_same(twice, once, shape);
            free(twice.data);
            free(once.data);
        }
        free(out.data);
    }
    CHECK(done == shape->frame_bytes - shape->header_bytes, "%zu payload bytes in all slices", done);
}

static void check_vlan(struct bytes whole, uint16_t tci) {
    struct bytes room = exactly(VLAN_TAG_BYTES + whole.length);
    memcpy(room.data + VLAN_TAG_BYTES, whole.data, whole.length);
    const uint16_t tpid = tci & 1 ? 0x88a8 : 0x8100;
    const uint8_t *tagged = packet_restore_vlan(room.data + VLAN_TAG_BYTES, whole.length, tpid, tci);
    const size_t addresses_end = VNET_HEADER_BYTES + 12;
    if (whole.length < addresses_end) {
        CHECK(tagged == room.data + VLAN_TAG_BYTES, "too short to be tagged");
        CHECK(memcmp(tagged, whole.data, whole.length) == 0, "and left alone");
    } else {
        CHECK(tagged == room.data, "the tag lies in the headroom");
        CHECK(memcmp(tagged + VNET_HEADER_BYTES, whole.data + VNET_HEADER_BYTES, 12) == 0, "addresses");
        CHECK(big16(tagged + addresses_end) == tpid && big16(tagged + addresses_end + 2) == tci, "tag");
        CHECK(memcmp(tagged + addresses_end + 4, whole.data + addresses_end, whole.length - addresses_end) == 0, "the rest");
        struct packet_shape old, new;
        const bool described = packet_describe(whole.data, whole.length, &old);
        CHECK(!described || packet_describe(tagged, room.length, &new), "a tagged packet is a packet");
        if (described && vnet_of(whole.data).csum_start <= UINT16_MAX - VLAN_TAG_BYTES)
            CHECK(old.segments == new.segments && (old.segments == 1 || new.header_bytes == old.header_bytes + 4),
                  "%u segments, tagged %u", old.segments, new.segments);
    }
    free(room.data);
}

/* The Internet checksum's sum of [from, end), as a residue; an odd last byte counts as a word's first (RFC 1071). */
static uint32_t residue_to_end(struct bytes packet, size_t from) {
    uint64_t sum = 0;
    for (size_t i = from; i < packet.length; i++)
        sum += (i - from) % 2 ? packet.data[i] : (uint32_t)packet.data[i] << 8;
    return (uint32_t)(sum % 0xffff);
}

static struct bytes copy_of(struct bytes packet) {
    struct bytes copy = exactly(packet.length);
    memcpy(copy.data, packet.data, packet.length);
    return copy;
}

static void check_completion(struct bytes whole) {
    struct bytes done = copy_of(whole);
    const bool completed = packet_complete_checksum(done.data, done.length);
    if (!completed) {
        CHECK(memcmp(done.data, whole.data, whole.length) == 0, "not completed, and changed");
    } else {
        const struct virtio_net_hdr old = vnet_of(whole.data);
        const size_t start = VNET_HEADER_BYTES + (size_t)old.csum_start, field = start + old.csum_offset;
        CHECK(old.gso_type == VIRTIO_NET_HDR_GSO_NONE, "a super-packet has a checksum for each segment");
        for (size_t i = 0; i < VNET_HEADER_BYTES; i++)
            CHECK(done.data[i] == 0, "byte %zu of the virtio header: as from a wire", i);
        if (old.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) {
            /* With the pseudo header, which the field held, everything sums up to zero; where words overlap it is moot. */
            if (old.csum_offset % 2 == 0)
                CHECK((residue_to_end(done, start) + big16(whole.data + field)) % 0xffff == 0, "checksum");
            memcpy(done.data + field, whole.data + field, 2);
        }
        CHECK(memcmp(done.data + VNET_HEADER_BYTES, whole.data + VNET_HEADER_BYTES, whole.length - VNET_HEADER_BYTES) == 0,
              "bytes besides the checksum");
    }
    free(done.data);
}

static void check_flip(struct bytes whole, uint32_t random) {
    struct bytes flipped = copy_of(whole);
    packet_flip_bit(flipped.data, flipped.length, (uint64_t)random << 32 | random);
    unsigned bits = 0;
    for (size_t i = 0; i < whole.length; i++)
        bits += (unsigned)__builtin_popcount(whole.data[i] ^ flipped.data[i]);
    CHECK(bits == 1 && memcmp(whole.data, flipped.data, VNET_HEADER_BYTES) == 0, "%u bits", bits);
    free(flipped.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    const uint32_t stretch = take(&input, 2);
    const uint16_t tci = (uint16_t)take(&input, 2);
    const uint32_t cuts = take(&input, 4);
    const size_t given = (size_t)(input.end - input.at);
    if (given + stretch > FRAME_MAX_BYTES) /* port.c hands over none that is longer */
        return 0;

    struct bytes whole = exactly(given + stretch);
    memcpy(whole.data, input.at, given);
    for (size_t i = given; i < whole.length; i++)
        whole.data[i] = (uint8_t)(i * 31 >> 3);

    struct packet_shape shape;
    const bool described = packet_describe(whole.data, whole.length, &shape);
    CHECK(described == (whole.length >= VNET_HEADER_BYTES + 14), "%zu bytes", whole.length);
    if (described) {
        check_shape(&shape, whole.length);
        if (shape.segments > 1)
            check_slices(whole, &shape, cuts);
        check_completion(whole);
        check_flip(whole, cuts);
    }
    check_vlan(whole, tci);
    free(whole.data);
    return 0;
}
