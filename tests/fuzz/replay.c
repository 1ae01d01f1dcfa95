/* Runs a target on files, and on every file of a folder: what a machine without libFuzzer can do with the corpus.
 * Each input lies in memory of exactly its size, so that AddressSanitizer sees one byte too far.
 *
 * The last line on stdout is "replayed N". */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static size_t replayed;

__attribute__((noreturn)) static void die(const char *path) {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    exit(2);
}

static void replay_file(const char *path, size_t size) {
    uint8_t *data = malloc(size + (size == 0));
    FILE *file = fopen(path, "rb");
    if (!file || !data || fread(data, 1, size, file) != size)
        die(path);
    fclose(file);
    fprintf(stderr, "%s\n", path); /* the last name is the one that failed */
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    replayed++;
}

static void replay(const char *path) {
    struct stat status;
    if (stat(path, &status) < 0)
        die(path);
    if (!S_ISDIR(status.st_mode)) {
        replay_file(path, (size_t)status.st_size);
        return;
    }
    DIR *folder = opendir(path);
    if (!folder)
        die(path);
    for (const struct dirent *entry; (entry = readdir(folder));) {
        char inner[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        replay(inner);
    }
    closedir(folder);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        replay(argv[i]);
    printf("replayed %zu\n", replayed);
    return 0;
}
