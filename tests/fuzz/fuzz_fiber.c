/* The whole of a plant in virtual time: two directions between two ends, and whatever the input makes of them.
 *
 * Input: uint32 seed, then operations, one byte each with its operands. Packets carry their number in the source address
 * (also their slices do), so that each one that leaves is compared with what came in. */
#include "fuzz.h"
#include "fuzz_frame.h"
#include "fuzz_port.h"
#include "packet.h"
#include "plant.h"

#include <errno.h>
#include <linux/virtio_net.h>
#include <math.h>
#include <string.h>

enum {
    DIRECTIONS = 2,
    MOST_PACKETS = 256,
    MOST_SETTINGS = 256,
    MOST_BYTES = 1 << 20, /* of all packets: keeps an input quick */
    ETHERNET_BYTES = 14,
    NUMBER_AT = VNET_HEADER_BYTES + 6,
    TCP_HEADER_BYTES = ETHERNET_BYTES + 20 + 20,
};
static const uint64_t BEGIN_NS = 1000000000000;
static const uint64_t LONGEST_NS = 60000000000;
static const uint64_t NO_CAP = UINT64_MAX;

struct sent_in {
    unsigned direction;
    uint64_t arrival;
    uint32_t frame_bytes, mss; /* mss 0: anything, compared as a whole */
    uint32_t segments;
    size_t setting;    /* the one in force when it was received */
    uint8_t *copy;
};

struct watched {
    struct fiber *fiber;
    struct impairment settings[MOST_SETTINGS];
    size_t setting_count;
    uint64_t received, delivered, delivered_packets, delivered_bytes; /* received and delivered: segments */
    uint64_t down_at;
    bool went_down, send_failed;
    uint32_t last_number, last_first, last_segment; /* what left last: packet, first segment, and the one after its last */

    /* One setting, beginning with an empty fiber: what left since, in ns at the rate. */
    bool measuring;
    uint64_t measured_since;
    double measured_ns;
    uint64_t measured_packets;
};

static struct plant plant;
static struct watched watched[DIRECTIONS];
static struct sent_in packets[MOST_PACKETS];
static uint32_t packet_count;
static size_t packet_bytes;
static bool allocation_failed;

/* ---- packets -------------------------------------------------------------------------------------------------------- */

static uint8_t pattern(uint32_t number, uint32_t offset) { return (uint8_t)(number * 131 + offset * 7 + (offset >> 8)); }

/* A TCP super-packet over IPv4, or a plain segment where mss is enough for all. */
static void write_super(uint8_t *packet, uint32_t number, uint32_t payload, uint32_t mss) {
    struct virtio_net_hdr vnet = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                  .gso_type = payload > mss ? VIRTIO_NET_HDR_GSO_TCPV4 : VIRTIO_NET_HDR_GSO_NONE,
                                  .hdr_len = TCP_HEADER_BYTES,
                                  .gso_size = (uint16_t)(payload > mss ? mss : 0),
                                  .csum_start = ETHERNET_BYTES + 20,
                                  .csum_offset = 16};
    memset(packet, 0, VNET_HEADER_BYTES + TCP_HEADER_BYTES);
    memcpy(packet, &vnet, sizeof vnet);
    uint8_t *frame = packet + VNET_HEADER_BYTES;
    frame[12] = 0x08;
    uint8_t *ip = frame + ETHERNET_BYTES, *tcp = ip + 20;
    ip[0] = 0x45;
    ip[9] = 6;
    tcp[12] = 0x50;
    for (uint32_t i = 0; i < payload; i++)
        frame[TCP_HEADER_BYTES + i] = pattern(number, i);
}

static void write_number(uint8_t *packet, size_t length, uint32_t number) {
    if (length >= NUMBER_AT + sizeof number)
        memcpy(packet + NUMBER_AT, &number, sizeof number);
}

/* Hand a packet to `direction`; the kernel saw it `age` ns ago. */
static void receive(unsigned direction, struct frame *frame, uint32_t mss, uint64_t age) {
    struct watched *w = &watched[direction];
    const uint32_t number = packet_count++;
    uint8_t *packet = frame_packet(frame);
    write_number(packet, frame->length, number);
    struct packet_shape shape;
    const bool described = packet_describe(packet, frame->length, &shape);
    packets[number] = (struct sent_in){.direction = direction,
                                       .arrival = fuzz_now - age,
                                       .frame_bytes = frame->length - VNET_HEADER_BYTES,
                                       .mss = mss,
                                       .segments = described ? shape.segments : 1,
                                       .setting = w->setting_count - 1,
                                       .copy = malloc(frame->length + 1)};
    memcpy(packets[number].copy, packet, frame->length);
    if (mss > 0)
        CHECK(packets[number].segments == (packets[number].frame_bytes - TCP_HEADER_BYTES + mss - 1) / mss, "segments");
    packet_bytes += frame->length;
    if (w->fiber->packets_under_way == 0 && w->fiber->next_free <= fuzz_now - age) {
        w->measuring = true;
        w->measured_since = UINT64_MAX;
        w->measured_ns = 0;
        w->measured_packets = 0;
    }
    if (fuzz_now - age < w->measured_since)
        w->measured_since = fuzz_now - age;
    w->received += packets[number].segments;
    fuzz_arrivals[0] = (struct arrival){frame, fuzz_now - age};
    fuzz_arrival_count = 1;
    CHECK(plant_receive(&plant, direction) == 1, "one packet was there");
}

/* ---- what leaves ---------------------------------------------------------------------------------------------------- */

/* How far jitter reaches below the mean, said in core/physics/impairment.py; rounded up. */
static uint64_t reach_ns(const struct impairment *s) {
    static const double reach[DISTRIBUTIONS] = {1, 4, 0.57735026919, 1.43301270190};
    return s->jitter_ns > 0 ? 1 + (uint64_t)(reach[s->distribution] * (double)s->jitter_ns) : 0;
}

static uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

static double at_rate_ns(const struct impairment *s, uint32_t l2_bytes, uint32_t segments) {
    return s->rate_bps > 0 ? (double)(l2_bytes + segments * s->overhead_bytes) * 8e9 / s->rate_bps : 0;
}

/* No setting since the packet came would have let it pass any earlier. Jitter is drawn once: a packet that waits takes it
 * along to a new delay, and the overhead that was counted when it came to a new rate. */
static void check_time(const struct watched *w, const struct sent_in *in, uint32_t l2_bytes, uint32_t segments) {
    uint64_t delay = UINT64_MAX, jitter = 0;
    double fastest_ns = INFINITY;
    uint64_t overhead = UINT64_MAX;
    for (size_t i = in->setting; i < w->setting_count; i++)
        overhead = w->settings[i].overhead_bytes < overhead ? w->settings[i].overhead_bytes : overhead;
    for (size_t i = in->setting; i < w->setting_count; i++) {
        const struct impairment *s = &w->settings[i];
        struct impairment least = *s;
        least.overhead_bytes = overhead;
        const double ns = at_rate_ns(&least, l2_bytes, segments);
        delay = s->delay_ns < delay ? s->delay_ns : delay;
        jitter = reach_ns(s) > jitter ? reach_ns(s) : jitter;
        fastest_ns = ns < fastest_ns ? ns : fastest_ns;
    }
    const uint64_t rounding = 1 + w->setting_count - in->setting; /* each change cuts off a fraction of a nanosecond */
    const uint64_t earliest = in->arrival + minus(delay, jitter) + (uint64_t)fastest_ns;
    CHECK(fuzz_now + rounding >= earliest, "%lu ns too early", earliest - fuzz_now);
}

/* All together have not left faster than the rate. */
static void check_rate(struct watched *w, uint32_t l2_bytes, uint32_t segments) {
    const struct impairment *s = &w->settings[w->setting_count - 1];
    if (!w->measuring || s->rate_bps <= 0)
        return;
    w->measured_ns += at_rate_ns(s, l2_bytes, segments);
    w->measured_packets++;
    const uint64_t earliest = w->measured_since + minus(s->delay_ns, reach_ns(s)) + (uint64_t)w->measured_ns;
    CHECK(fuzz_now + w->measured_packets >= earliest, "%lu ns faster than the rate", earliest - fuzz_now);
}

static bool ever(const struct watched *w, bool (*is)(const struct impairment *)) {
    for (size_t i = 0; i < w->setting_count; i++) {
        if (is(&w->settings[i]))
            return true;
    }
    return false;
}

static bool loses(const struct impairment *s) { return s->loss > 0 || s->p > 0; }
static bool corrupts(const struct impairment *s) { return s->corrupt > 0; }
static bool flips(const struct impairment *s) { return s->corrupt > 0 && s->corrupt_survives; }
static bool duplicates(const struct impairment *s) { return s->duplicate > 0; }
static bool holds_back(const struct impairment *s) { return s->reorder > 0; }
static bool reorders(const struct impairment *s) { return s->reorder > 0 || s->jitter_reorders; }
static bool queues(const struct impairment *s) { return s->queue_bytes > 0; }
static bool caps(const struct impairment *s) { return s->memory_bytes < NO_CAP; }

static void check_order(struct watched *w, uint32_t number, uint32_t first, uint32_t segments, bool splits) {
    if (ever(w, reorders))
        return;
    const bool again = ever(w, duplicates) && first >= w->last_first;
    CHECK(number > w->last_number || (number == w->last_number && (!splits || first >= w->last_segment || again)),
          "packet %u, segment %u after %u, %u", number, first, w->last_number, w->last_segment);
    w->last_number = number;
    w->last_first = first;
    w->last_segment = first + segments;
}

enum { NOTHING_LIKE_IT = 1000 };

/* Wrong bits in the payload of what left, if it is of packet `number` from `offset` on; 0 for one that is not compared. */
static unsigned wrong_bits(unsigned direction, const struct frame *frame, uint32_t number, uint32_t offset) {
    if (number >= packet_count || packets[number].direction != direction)
        return NOTHING_LIKE_IT;
    const struct sent_in *in = &packets[number];
    if (in->mss == 0)
        return 0;
    if (offset % in->mss != 0 || offset / in->mss >= in->segments || frame->length < VNET_HEADER_BYTES + TCP_HEADER_BYTES)
        return NOTHING_LIKE_IT;
    const uint8_t *payload = frame->data + frame->start + VNET_HEADER_BYTES + TCP_HEADER_BYTES;
    unsigned bits = 0;
    for (uint32_t i = 0; i < frame->length - VNET_HEADER_BYTES - TCP_HEADER_BYTES; i++)
        bits += (unsigned)__builtin_popcount(payload[i] ^ pattern(number, offset + i));
    return bits;
}

/* What left is something that came in, but for one bit: of its payload, its sequence number, or its number. */
static void check_flipped(unsigned direction, const struct frame *frame) {
    const uint8_t *packet = frame->data + frame->start;
    uint32_t number;
    memcpy(&number, packet + NUMBER_AT, sizeof number);
    const size_t sequence_at = VNET_HEADER_BYTES + ETHERNET_BYTES + 20 + 4;
    const uint32_t offset = frame->length >= sequence_at + 4 ? big32(packet + sequence_at) : 0;
    bool found = wrong_bits(direction, frame, number, offset) <= 1;
    for (unsigned bit = 0; bit < 32 && !found; bit++)
        found = wrong_bits(direction, frame, number ^ 1u << bit, offset) == 0 ||
                wrong_bits(direction, frame, number, offset ^ 1u << bit) == 0;
    CHECK(found, "%u bytes, packet %u from %u on, are nothing that came in", frame->length, number, offset);
}

static void on_sent(const struct port *port, const struct frame *frame) {
    const unsigned direction = port == plant.ports[1] ? 0 : 1;
    struct watched *w = &watched[direction];
    const uint8_t *packet = frame->data + frame->start;
    CHECK(frame->length >= VNET_HEADER_BYTES + ETHERNET_BYTES, "%u bytes", frame->length);
    uint32_t number;
    memcpy(&number, packet + NUMBER_AT, sizeof number);
    if (ever(w, flips)) {
        check_flipped(direction, frame);
        w->delivered += frame->segments;
        w->delivered_packets++;
        w->delivered_bytes += frame->l2_bytes;
        return;
    }
    CHECK(number < packet_count && packets[number].direction == direction, "packet %u never came in here", number);
    const struct sent_in *in = &packets[number];
    const uint32_t frame_bytes = frame->length - VNET_HEADER_BYTES;

    uint32_t first = 0, segments = in->segments, l2_bytes = frame_bytes;
    if (in->mss > 0) {
        const uint8_t *payload = packet + VNET_HEADER_BYTES + TCP_HEADER_BYTES;
        const uint32_t offset = big32(packet + VNET_HEADER_BYTES + ETHERNET_BYTES + 20 + 4);
        const uint32_t bytes = frame_bytes - TCP_HEADER_BYTES;
        CHECK(offset % in->mss == 0 && offset + bytes <= in->frame_bytes - TCP_HEADER_BYTES, "offset %u", offset);
        first = offset / in->mss;
        segments = (bytes + in->mss - 1) / in->mss;
        CHECK(bytes % in->mss == 0 || first + segments == in->segments, "cut in the middle of a segment");
        for (uint32_t i = 0; i < bytes; i++)
            CHECK(payload[i] == pattern(number, offset + i), "payload of packet %u at %u", number, offset + i);
        l2_bytes += (segments - 1) * TCP_HEADER_BYTES;
    } else {
        struct packet_shape shape;
        CHECK(packet_describe(packet, frame->length, &shape), "what leaves is a packet");
        segments = shape.segments;
        l2_bytes = packet_l2_bytes(&shape, 0, shape.segments);
        if (segments == in->segments)
            CHECK(frame->length == in->frame_bytes + VNET_HEADER_BYTES && memcmp(packet, in->copy, frame->length) == 0,
                  "a whole packet leaves unchanged");
    }

    check_time(w, in, l2_bytes, segments);
    check_rate(w, l2_bytes, segments);
    CHECK(!w->went_down || in->arrival > w->down_at, "packet %u was in flight when an end went down", number);
    check_order(w, number, first, segments, in->mss > 0);
    w->delivered += segments;
    w->delivered_packets++;
    w->delivered_bytes += l2_bytes;
}

/* ---- what adds up --------------------------------------------------------------------------------------------------- */

static void check_counters(const struct watched *w) {
    const struct fiber *fiber = w->fiber;
    const struct fiber_stats *stats = &fiber->stats;
    uint64_t under_way = 0, under_way_packets = 0, memory = 0;
    for (const struct frame *frame = fiber->head; frame; frame = frame->next) {
        CHECK(!frame->next || frame->due <= frame->next->due, "order of due");
        under_way += frame->segments;
        under_way_packets++;
        memory += frame_cost(frame);
    }
    for (size_t i = 0; i < fiber->strays.count; i++) {
        CHECK(ever(w, reorders), "nothing may overtake");
        under_way += fiber->strays.frames[i]->segments;
        under_way_packets++;
        memory += frame_cost(fiber->strays.frames[i]);
    }
    CHECK(under_way_packets == fiber->packets_under_way, "%lu packets are under way", under_way_packets);
    CHECK(memory == fiber->memory_used, "%lu bytes are in use, not %lu", memory, fiber->memory_used);

    uint64_t drops = 0, lateness = 0;
    for (unsigned cause = 0; cause < DROP_CAUSES; cause++)
        drops += stats->drops[cause];
    for (unsigned bin = 0; bin <= LATENESS_BOUNDS; bin++)
        lateness += stats->lateness[bin];
    CHECK(w->received + stats->duplicated == w->delivered + drops + under_way,
          "%lu came, %lu were doubled: %lu left, %lu lost, %lu under way", w->received, stats->duplicated, w->delivered,
          drops, under_way);
    CHECK(stats->segments == w->delivered && stats->packets == w->delivered_packets &&
              stats->bytes == w->delivered_bytes && lateness == w->delivered_packets,
          "delivered");

    /* Nothing without its cause. */
    CHECK(stats->drops[DROP_LOSS] == 0 || ever(w, loses), "loss");
    CHECK(stats->drops[DROP_CORRUPT] == 0 || ever(w, corrupts), "corrupt");
    CHECK(stats->corrupted == 0 || ever(w, corrupts), "corrupted");
    CHECK(stats->duplicated == 0 || ever(w, duplicates), "duplicated");
    CHECK(stats->held_back == 0 || ever(w, holds_back), "held back");
    CHECK(stats->drops[DROP_QUEUE] == 0 || ever(w, queues), "queue");
    CHECK(stats->drops[DROP_MEMORY] == 0 || ever(w, caps) || allocation_failed, "memory");
    CHECK(stats->drops[DROP_TRANSMIT] == 0 || w->send_failed, "transmit");
    CHECK(stats->drops[DROP_DOWN] == 0 || w->went_down, "down");
}

/* ---- operations ----------------------------------------------------------------------------------------------------- */

static void op_set(struct input *input, struct watched *w) {
    static const double rates[] = {0, 1e3, 1e6, 1e8, 1e9, 2.4e9, 1e11, 1e13};
    static const uint64_t delays[] = {0, 1, 60000, 5000000, LONGEST_NS};
    struct impairment s = w->fiber->impairment;
    const uint32_t which = take(input, 2), choice = take(input, 1);
    if (which & 1)
        s.delay_ns = choice & 1 ? delays[choice / 2 % 5] : take(input, 4);
    if (which & 2)
        s.rate_bps = choice & 2 ? rates[choice / 4 % 8] : 1000.0 + 1000.0 * take(input, 3);
    if (which & 4)
        s.queue_bytes = choice & 4 ? take(input, 2) : take(input, 1) * 10000;
    if (which & 8)
        s.loss = take(input, 1) / 255.0;
    if (which & 16)
        s.memory_bytes = choice & 8 ? 1 + take(input, 3) : NO_CAP;
    if (which & 32)
        s.overhead_bytes = take(input, 1);
    if (which & 64) {
        s.distribution = choice % DISTRIBUTIONS;
        s.jitter_ns = choice & 16 ? take(input, 1) * 100 : take(input, 4);
        s.jitter_reorders = choice & 32;
        s.correlation = choice & 64 ? take(input, 1) / 256.0 : 0;
    }
    if (which & 128) {
        double *const chain[] = {&s.p, &s.r, &s.h, &s.k};
        for (size_t i = 0; i < 4; i++)
            *chain[i] = take(input, 1) / 255.0;
        s.loss = s.p > 0 ? 0 : s.loss;
    }
    if (which & 256) {
        s.corrupt = take(input, 1) / 255.0;
        s.corrupt_survives = choice & 128;
    }
    if (which & 512)
        s.duplicate = take(input, 1) / 255.0;
    if (which & 1024) {
        s.reorder = take(input, 1) / 255.0;
        s.reorder_by_ns = (uint64_t)take(input, 2) << choice % 16;
    }
    if (w->setting_count == MOST_SETTINGS)
        return;
    w->settings[w->setting_count++] = s;
    w->measuring = false;
    plant_set(&plant, w->fiber, &s);
}

static uint64_t backlog(const struct watched *w, uint64_t at) { return fiber_backlog(w->fiber, at); }

static void op_receive(struct input *input, unsigned direction, bool raw) {
    uint32_t mss = 0;
    size_t length;
    struct frame *frame;
    const uint64_t age = take(input, 1) * 1000;
    if (packet_count == MOST_PACKETS || packet_bytes > MOST_BYTES)
        return;
    const unsigned failure = fuzz_frames_until_failure;
    fuzz_frames_until_failure = 0; /* for the fiber's own, not for the harness */
    if (raw) {
        const size_t head = take(input, 1), rest = take(input, 2);
        length = head + rest < FRAME_MAX_BYTES ? head + rest : FRAME_MAX_BYTES;
        frame = frame_get(length);
        for (size_t i = 0; i < length; i++)
            frame_packet(frame)[i] = (uint8_t)(i < head ? take(input, 1) : i);
    } else {
        const uint32_t payload = 1 + take(input, 2) % (65535 - TCP_HEADER_BYTES);
        mss = 1 + take(input, 2) % 9000;
        length = VNET_HEADER_BYTES + TCP_HEADER_BYTES + payload;
        frame = frame_get(length);
        write_super(frame_packet(frame), packet_count, payload, mss);
    }
    fuzz_frames_until_failure = failure;
    frame->length = (uint32_t)length;
    const struct watched *w = &watched[direction];
    const uint64_t before = backlog(w, fuzz_now - age);
    receive(direction, frame, mss, age);
    const uint64_t limit = w->fiber->impairment.queue_bytes, after = backlog(w, fuzz_now - age);
    if (limit > 0)
        CHECK(after <= limit + 1 || after <= before, "%lu bytes wait, %lu may", after, limit);
    CHECK(w->fiber->memory_used <= w->fiber->impairment.memory_bytes || ever(w, caps), "memory");
}

static void send_due(void) {
    const uint64_t next = plant_send_due(&plant);
    CHECK(next > fuzz_now, "what is due was not sent");
    const uint64_t under_way = plant.fibers[0]->packets_under_way + plant.fibers[1]->packets_under_way;
    CHECK((next == UINT64_MAX) == (under_way == 0), "%lu packets are under way", under_way);
}

static void op_advance(uint64_t ns) {
    fuzz_now += ns;
    send_due();
}

static void op_down(unsigned direction) {
    fuzz_receive_errno = ENETDOWN;
    plant_receive(&plant, direction);
    fuzz_receive_errno = EAGAIN;
    for (unsigned i = 0; i < DIRECTIONS; i++) {
        watched[i].went_down = true;
        watched[i].down_at = fuzz_now;
        CHECK(watched[i].fiber->packets_under_way == 0, "in flight in a dark fiber");
    }
}

static void op_egress(uint32_t how) {
    static const int errors[] = {EAGAIN, ENOBUFS, EINTR, EINVAL, EMSGSIZE, ENXIO, ENETDOWN};
    fuzz_send_most = how & 8 ? 1 + (int)(how >> 4) : how & 7 ? 0 : PORT_BATCH;
    if (how & 8 || !(how & 7))
        return;
    fuzz_send_errno = errors[(how & 7) - 1];
    for (unsigned i = 0; i < DIRECTIONS; i++) {
        watched[i].send_failed = true;
        watched[i].went_down |= fuzz_send_errno == ENETDOWN || fuzz_send_errno == ENXIO; /* down_at: not ours to know */
    }
}

static void operate(struct input *input) {
    const uint32_t byte = take(input, 1);
    const unsigned direction = byte >> 7;
    uint64_t next;
    switch (byte % 8) {
    case 0:
        op_set(input, &watched[direction]);
        break;
    case 1:
    case 2:
        op_receive(input, direction, false);
        break;
    case 3:
        op_receive(input, direction, true);
        break;
    case 4:
        op_advance((uint64_t)take(input, 2) << (byte >> 3) % 16);
        break;
    case 5: /* exactly when the next packet is due */
        next = plant_send_due(&plant);
        op_advance(next != UINT64_MAX ? next - fuzz_now : 0);
        break;
    case 6:
        op_egress(take(input, 1));
        break;
    case 7:
        if (byte & 8)
            op_down(direction);
        else
            fuzz_frames_until_failure = take(input, 1);
        allocation_failed |= !(byte & 8);
        break;
    }
}

/* ---- the beginning and the end -------------------------------------------------------------------------------------- */

static void begin(uint32_t seed) {
    static const char *const ends[] = {"a", "b"};
    char why[256];
    memset(&plant, 0, sizeof plant);
    CHECK(plant_init(&plant, DIRECTIONS), "out of memory");
    memset(watched, 0, sizeof watched);
    plant.seed = seed;
    packet_count = 0;
    packet_bytes = 0;
    allocation_failed = false;
    fuzz_now = BEGIN_NS;
    fuzz_send_most = PORT_BATCH;
    fuzz_frames_until_failure = 0;
    fuzz_sent = on_sent;
    for (unsigned i = 0; i < DIRECTIONS; i++) {
        CHECK(plant_add(&plant, ends[1 - i], ends[i], ends[1 - i], why, sizeof why), "%s", why);
        watched[i].fiber = plant.fibers[i];
        struct impairment *first = &watched[i].settings[0];
        *first = plant.fibers[i]->impairment;
        first->memory_bytes = NO_CAP;
        plant_set(&plant, plant.fibers[i], first);
        watched[i].setting_count = 1;
    }
}

/* Let everything out: nothing may stay behind. */
static void end(void) {
    fuzz_send_most = PORT_BATCH;
    for (uint64_t next; (next = plant_send_due(&plant)) != UINT64_MAX;)
        fuzz_now = next;
    for (unsigned i = 0; i < DIRECTIONS; i++) {
        check_counters(&watched[i]);
        CHECK(plant.fibers[i]->packets_under_way == 0 && plant.fibers[i]->memory_used == 0, "nothing is under way");
    }
    CHECK(fuzz_frames_alive == 0, "%zu frames were never given back", fuzz_frames_alive);
    for (uint32_t i = 0; i < packet_count; i++)
        free(packets[i].copy);
    for (unsigned i = 0; i < DIRECTIONS; i++) {
        free(plant.fibers[i]->strays.frames);
        free(plant.fibers[i]);
        free(plant.ports[i]);
    }
    plant_free(&plant);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, data + size};
    begin(take(&input, 4));
    while (input.at < input.end) {
        operate(&input);
        for (unsigned i = 0; i < DIRECTIONS; i++)
            check_counters(&watched[i]);
    }
    end();
    return 0;
}
