/* Attention on tiles in plain C, for tests. */
#if defined(__x86_64__)
#define CORTIQ_EMULATE_AMX
#define CQ_ISA_AVX512
#define CQ_TILES
#include "isa.h"

#include "attention_body.h"

void cortiq_attend_amx_emulated(const attention_task *t)
{
    tiles_begin();
    attend_task(t);
    tiles_end();
}
CQ_TARGET_END
#endif
