#include "record.h"

#include "packet.h"

#include <stdlib.h>
#include <string.h>

/* Offsets in an Ethernet frame without VLAN tag and IP options. */
enum { ETHERTYPE_AT = 12, IPV4_AT = 14, PROTOCOL_AT = 23, MARK_AT = 42, PROTOCOL_ICMP = 1, PROTOCOL_UDP = 17 };

bool recorder_start(struct recorder *recorder, uint64_t nonce) {
    free(recorder->records);
    *recorder = (struct recorder){.nonce = nonce};
    if (nonce == 0)
        return true;
    recorder->records = malloc(RECORD_ROOM * sizeof *recorder->records);
    if (!recorder->records)
        recorder->nonce = 0;
    return recorder->records != NULL;
}

uint64_t recorder_mark(const struct recorder *recorder, const uint8_t *packet, size_t length) {
    static const uint8_t ipv4[] = {0x08, 0x00, 0x45};
    uint64_t mark;
    if (recorder->nonce == 0 || length < VNET_HEADER_BYTES + MARK_AT + sizeof mark)
        return 0;
    const uint8_t *frame = packet + VNET_HEADER_BYTES;
    if (memcmp(frame + ETHERTYPE_AT, ipv4, sizeof ipv4) != 0)
        return 0;
    if (frame[PROTOCOL_AT] != PROTOCOL_UDP && frame[PROTOCOL_AT] != PROTOCOL_ICMP)
        return 0;
    memcpy(&mark, frame + MARK_AT, sizeof mark);
    return mark >> RECORD_MARK_BITS == recorder->nonce ? mark : 0;
}

void recorder_add(struct recorder *recorder, struct record record) {
    if (recorder->nonce == 0)
        return;
    if (recorder->count == RECORD_ROOM) {
        recorder->lost++;
        return;
    }
    record.mark &= (1ull << RECORD_MARK_BITS) - 1;
    recorder->records[recorder->count++] = record;
}
