// Runs before anything is drawn, so that no page flashes in the other scheme.
document.documentElement.dataset.theme = localStorage.getItem("smore.theme") ?? "system";
