/* Runs packet.c under sanitizers on what a test sends. Records on stdin, native byte order:
 *   uint32 operation, first, last, length, then the packet.
 * operation 0: answer uint32 described, segments, header_bytes, l2_bytes(first, last), out_length and the slice [first, last).
 *              A slice is made only if 0 <= first < last <= segments and segments > 1; else out_length is 0.
 * operation 1: restore a VLAN tag, tpid = first, tci = last; answers as above, the whole packet as the slice.
 * Each packet lies in memory of exactly its size, so that one byte too far is found. */
#include "packet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    uint32_t ask[4];
    while (fread(ask, sizeof ask, 1, stdin) == 1) {
        const uint32_t operation = ask[0], first = ask[1], last = ask[2], length = ask[3];
        const uint32_t room = operation == 1 ? VLAN_TAG_BYTES : 0;
        uint8_t *memory = malloc(room + length + (room + length == 0));
        uint8_t *packet = memory + room;
        if (length > 0 && fread(packet, length, 1, stdin) != 1)
            return 3;
        struct packet_shape shape;
        uint32_t reply[5] = {0};
        uint8_t *out = NULL;
        if (operation == 1) {
            uint8_t *tagged = packet_restore_vlan(packet, length, (uint16_t)first, (uint16_t)last);
            reply[4] = length + (uint32_t)(packet - tagged);
            out = malloc(reply[4] + 1);
            memcpy(out, tagged, reply[4]);
        } else if ((reply[0] = packet_describe(packet, length, &shape))) {
            reply[1] = shape.segments;
            reply[2] = shape.header_bytes;
            if (first < last && last <= shape.segments) {
                reply[3] = packet_l2_bytes(&shape, first, last);
                if (shape.segments > 1) {
                    reply[4] = (uint32_t)packet_slice_length(&shape, first, last);
                    out = malloc(reply[4]);
                    packet_slice(packet, &shape, first, last, out);
                }
            }
        }
        fwrite(reply, sizeof reply, 1, stdout);
        if (out)
            fwrite(out, reply[4], 1, stdout);
        fflush(stdout);
        free(out);
        free(memory);
    }
    return 0;
}
