/*
 * Forks: state that a child must not use.
 *
 * This file is above all others. After a fork the child is another process: none of the parent's work is its own, and a
 * lock may have been held by a thread that the child does not have. Every file resets its own state here, lock and
 * counts together.
 */
#include "batch.h"
#include "container.h"
#include "contexts.h"
#include "graphs.h"
#include "ledger.h"
#include "physical.h"
#include "pools.h"
#include "settings.h"
#include "symbols.h"
#include "watch.h"
#include <pthread.h>

static void in_child(void)
{
    locks_forget();
    contexts_forget();
    graphs_forget();
    batch_forget();
    ledger_forget();
    physical_forget();
    settings_forget();
    pools_forget();
    symbols_forget();
    watch_forget();
    container_forget();
}

/* Before the first call, so that it also covers a fork while another thread opens the container. */
__attribute__((constructor)) static void at_load(void)
{
    pthread_atfork(symbols_before_fork, symbols_after_fork, in_child);
}
