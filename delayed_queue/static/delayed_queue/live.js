/* Keeps the regions marked data-dq-live fresh. Without it, every page works by reloading. */
"use strict";

{
    const PAUSE_MS = 2500;
    // The server is kept busy for a tenth of the time at most, however long a page takes.
    const SHARE = 10;

    // In the language of the page, as attributes of the script.
    const words = document.currentScript.dataset;

    const regions = () => [...document.querySelectorAll("[data-dq-live]")];
    // Django's own script holds on to the rows that can be ticked: such a list is reloaded whole.
    const isTickable = (page) => page.querySelector("tr input.action-select") !== null;

    const button = document.createElement("button");
    const status = document.createElement("span");
    let timer = null;
    let pause = PAUSE_MS;
    let isPressed = false;

    const memory = `dq-live:${document.body.className.match(/model-\w+|dq-\w+-page/)}`;

    function recalled(otherwise) {
        try {
            return (localStorage.getItem(memory) ?? otherwise) === "on";
        } catch {
            return otherwise === "on";
        }
    }

    function remember(isOn) {
        try {
            localStorage.setItem(memory, isOn ? "on" : "off");
        } catch {
            // A browser that forbids it forgets the choice, no more.
        }
    }

    const isOn = () => button.getAttribute("aria-pressed") === "true";

    /* Whether the operator is at something that fresh content would take out of their hands. */
    function isBusy() {
        const selection = document.getSelection();
        const holds = (node) => regions().some((region) => region.contains(node));
        return (
            isPressed ||
            (selection !== null && !selection.isCollapsed && holds(selection.anchorNode)) ||
            document.activeElement?.matches("input, select, textarea") === true ||
            holds(document.activeElement) ||
            document.querySelector("tr input.action-select:checked") !== null
        );
    }

    function tell(text) {
        status.textContent = text;
    }

    function replaceRegions(fresh) {
        for (const region of regions()) {
            const name = region.dataset.dqLive;
            const found = fresh.querySelector(`[data-dq-live="${CSS.escape(name)}"]`);
            if (found !== null) {
                const details = [...region.querySelectorAll("details")];
                found.querySelectorAll("details").forEach((each, at) => {
                    each.open = details[at]?.open ?? each.open;
                });
                region.replaceWith(document.adoptNode(found));
            }
        }
    }

    async function refresh() {
        if (isTickable(document)) {
            location.reload();
            return;
        }
        const started = performance.now();
        const response = await fetch(location.href, { credentials: "same-origin" });
        const text = await response.text();
        pause = Math.max(PAUSE_MS, SHARE * (performance.now() - started));
        const fresh = new DOMParser().parseFromString(text, "text/html");
        if (!response.ok || fresh.querySelector("[data-dq-live]") === null) {
            // Logged out, or what was shown has gone: the operator must see that page itself.
            turn(false, false);
            tell("stopped: reload the page");
            return;
        }
        if (!isOn() || isBusy()) {
            return;
        }
        if (isTickable(fresh)) {
            location.reload();
        } else {
            replaceRegions(fresh);
            // Where the title says what is wrong, in the tab and above the page.
            document.title = fresh.title;
            const [heading, latest] = [document, fresh].map((page) => page.querySelector("#content > h1"));
            if (heading !== null && latest !== null) {
                heading.textContent = latest.textContent;
            }
            tell(`${words.asOf} ${new Date().toLocaleTimeString()}`);
        }
    }

    async function tick() {
        if (document.visibilityState === "visible" && !isBusy()) {
            try {
                await refresh();
            } catch {
                tell(words.noAnswer);
            }
        }
        schedule();
    }

    function schedule() {
        clearTimeout(timer);
        timer = isOn() ? setTimeout(tick, pause) : null;
    }

    function turn(on, isChosen) {
        button.setAttribute("aria-pressed", String(on));
        button.textContent = on ? "Live" : words.off;
        tell("");
        if (isChosen) {
            remember(on);
        }
        schedule();
    }

    function begin() {
        const [first] = regions();
        if (first === undefined) {
            return;
        }
        button.type = "button";
        button.className = "dq-live-button";
        button.title = words.title;
        button.addEventListener("click", () => {
            turn(!isOn(), true);
            button.blur();
        });
        status.setAttribute("role", "status");
        status.className = "dq-quiet";
        const bar = document.createElement("div");
        bar.className = "dq-live";
        bar.append(button, status);
        first.before(bar);
        document.addEventListener("pointerdown", () => { isPressed = true; });
        for (const over of ["pointerup", "pointercancel"]) {
            document.addEventListener(over, () => { setTimeout(() => { isPressed = false; }, 300); });
        }
        document.addEventListener("visibilitychange", schedule);
        turn(recalled(isTickable(document) ? "off" : "on"), false);
    }

    begin();
}
