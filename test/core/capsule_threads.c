/* Calls every function of the core's table from threads that never held the GIL, while the caller holds it.
 *
 * A table function that needed the GIL would wait for ever. Answers the number of failed checks.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include "fg_core.h"

typedef struct {
    const fg_core_api_t *api;
    int rounds, failed;
} job_t;

static void expect(job_t *job, int right) {
    if (!right)
        job->failed++;
}

static void check_frames(job_t *job) {
    uint8_t frame[sizeof(fg_frame_t) + sizeof(fg_submit_t) + sizeof(fg_op_t)] = {0};
    fg_submit_t submit = {.nops = 1};
    fg_op_t op = {.opid = 1, .kind = FG_ALL_REDUCE, .dtype = FG_FLOAT32};
    fg_frame_t head;
    char why[200] = "";
    uint8_t *body = frame + sizeof(fg_frame_t);
    expect(job, job->api->frame_write(frame, FG_T_SUBMIT, 3, 7, sizeof(submit) + sizeof(op)) == FG_OK);
    expect(job, job->api->frame_write(frame, 99, 3, 7, 0) == FG_INVALID_ARGUMENT);
    expect(job, job->api->frame_write(frame, FG_T_PING, 3, 7, 1) == FG_LIMIT);
    memcpy(body, &submit, sizeof(submit));
    memcpy(body + sizeof(submit), &op, sizeof(op));
    expect(job, job->api->frame_check(frame, &head, why, sizeof(why)) == FG_OK);
    expect(job, head.request == 3 && head.member == 7 && head.type == FG_T_SUBMIT);
    expect(job, job->api->body_check(&head, body, why, sizeof(why)) == FG_OK);
    body[sizeof(submit) + offsetof(fg_op_t, kind)] = FG_KIND_COUNT;
    expect(job, job->api->body_check(&head, body, why, sizeof(why)) == FG_PROTOCOL && strstr(why, "SUBMIT: kind"));
    frame[0] = 'X';
    expect(job, job->api->frame_check(frame, &head, why, 8) == FG_PROTOCOL && strlen(why) == 7);
}

static void check_memory(job_t *job) {
    fg_segment_t mine, theirs;
    char why[200];
    float two[1000];
    const void *in[2];
    void *out[2];
    expect(job, job->api->segment_create(8192, &mine, why, sizeof(why)) == FG_OK);
    fg_buffer_ref_t ref = {(uint32_t)getpid(), mine.fd, mine.inode, 0, 8192};
    expect(job, job->api->segment_open(&ref, &theirs, why, sizeof(why)) == FG_OK);
    expect(job, job->api->segment_check(&theirs, 8192, 0) == FG_OK);
    expect(job, job->api->segment_check(&theirs, 8191, 2) == FG_LIMIT);
    for (int i = 0; i < 1000; i++)
        two[i] = ((float *)mine.base)[i] = (float)i;
    in[0] = mine.base, in[1] = two;
    out[0] = mine.base, out[1] = two;
    expect(job, job->api->dtype_size(FG_FLOAT32) == 4 && job->api->dtype_size(FG_DTYPE_COUNT) == 0);
    expect(job, job->api->reduce(FG_FLOAT32, FG_SUM, 1000, 2, in, NULL, 2, out) == FG_OK);
    expect(job, job->api->reduce(FG_FLOAT32, FG_PREMULSUM, 1000, 2, in, NULL, 2, out) == FG_INVALID_ARGUMENT);
    expect(job, ((float *)theirs.base)[999] == 1998.0f && two[999] == 1998.0f);
    job->api->segment_close(&theirs);
    job->api->segment_close(&theirs);
    expect(job, job->api->segment_check(&theirs, 0, 0) == FG_LIMIT);
    job->api->segment_close(&mine);
    expect(job, job->api->segment_open(&ref, &theirs, why, sizeof(why)) != FG_OK && theirs.base == NULL);
    mine.fd = -1;
    expect(job, job->api->segment_map(-1, &mine, why, sizeof(why)) == FG_SYSTEM && mine.base == NULL);
}

static void *hammer(void *arg) {
    job_t *job = arg;
    for (int i = 0; i < job->rounds; i++)
        check_frames(job);
    check_memory(job);
    return NULL;
}

int capsule_check(const fg_core_api_t *api, int threads, int rounds);
int capsule_check(const fg_core_api_t *api, int threads, int rounds) {
    pthread_t ids[16];
    job_t jobs[16];
    int failed = api->abi_version != FG_CORE_ABI_VERSION || api->struct_size != sizeof(*api), started = 0;
    for (; started < threads && started < 16; started++) {
        jobs[started] = (job_t){api, rounds, 0};
        if (pthread_create(&ids[started], NULL, hammer, &jobs[started]))
            break;
    }
    failed += started != threads;
    for (int i = 0; i < started; i++) {
        pthread_join(ids[i], NULL);
        failed += jobs[i].failed;
    }
    return failed;
}
