/* Attention on AMX tiles. */
#include "cortiq_native.h"

#if defined(CORTIQ_TILES)
#define CQ_ISA_AVX512
#define CQ_TILES
#include "isa.h"

#include "attention_body.h"

void cortiq_attend_amx(const attention_task *t)
{
    tiles_begin();
    attend_task(t);
    tiles_end();
}
CQ_TARGET_END
#endif
